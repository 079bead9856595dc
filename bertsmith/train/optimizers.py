"""AdamW as BERT used it, AdamW corrected, and Muon, behind one `Optimizer`.

- `adamw2018`: the 2018 code's AdamWeightDecayOptimizer: no bias correction, eps outside the root, decoupled decay.
- `adamw`: Loshchilov and Hutter (2019), with bias correction: torch.optim.AdamW, fused where the device has it.
- `muon`: Jordan et al. (2024), its rate matched to AdamW's as in Liu et al. (2025, arXiv:2502.16982), for the matrices
  that lead from hidden states to hidden states; AdamW for embeddings, scores, norms and biases. torch.optim.Muon
  always orthogonalises in bf16, which processors without bf16 units emulate a hundred times slower; ours takes fp32
  there, takes matrices of one shape together, and orthogonalises a fused QKV matrix as the three matrices it is.

Weight decay is 0.01 except for biases and LayerNorm, as in 2018.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError, StateError, TrainingError
from bertsmith.nn.device import choose_precision
from bertsmith.nn.heads import LabelHead, NspHead

NAMES = ("adamw", "adamw2018", "muon")
NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)  # quintic with the steepest slope at zero that keeps singular values near 1
NEWTON_SCHULZ_STEPS = 5
Group = dict[str, Any]


class Optimizer:
    """Several torch optimizers as one; its `state_dict` is flat, {"parameter/slot": tensor}, for safetensors."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer], about: str):
        self.parts = tuple(parts)
        self.about = about  # what was chosen and why, for the screen

    @property
    def param_groups(self) -> list[Group]:
        """Groups with keys params, names, lr, lr_scale, weight_decay; the very dictionaries the parts read."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Tensor]:
        return {
            f"{name}/{slot}": value
            for part in self.parts
            for group in part.param_groups
            for name, parameter in zip(group["names"], group["params"], strict=True)
            for slot, value in part.state.get(parameter, {}).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state_dict` gave; StateError names what is missing, left over, or of another shape."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, _, slot = key.rpartition("/")
            by_parameter.setdefault(name, {})[slot] = value
        for part in self.parts:
            expected = set(part.slots if isinstance(part, (AdamW2018, Muon)) else ("exp_avg", "exp_avg_sq", "step"))
            for group in part.param_groups:
                for name, parameter in zip(group["names"], group["params"], strict=True):
                    slots = by_parameter.pop(name, {})
                    if slots.keys() != expected:
                        raise StateError(
                            f"optimizer state of {name}: found {sorted(slots)}, expected {sorted(expected)}"
                        )
                    for slot, value in slots.items():
                        if value.ndim and value.shape != parameter.shape:
                            raise StateError(
                                f"optimizer state {name}/{slot}: {value.shape}, expected {parameter.shape}"
                            )
                        part.state[parameter][slot] = value.clone().to(parameter.device)
        if by_parameter:
            raise StateError(f"optimizer state of unknown parameters: {', '.join(sorted(by_parameter)[:5])}")


def build_optimizer(
    model: nn.Module,
    *,
    name: str = "adamw",
    learning_rate: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float | None = None,
    momentum: float = 0.95,
    adam_learning_rate: float | None = None,
) -> Optimizer:
    """The optimizer of a recipe over `model`'s trainable parameters.

    `eps` None: 1e-6 for adamw2018 (the 2018 code's), 1e-8 otherwise. With `muon`, `learning_rate` and `momentum` are
    those of the matrices, `adam_learning_rate` (None: the same) is that of everything else.
    """
    if name not in NAMES:
        raise ConfigError(f"train.optimizer {name!r} is none of {', '.join(NAMES)}")
    eps = (1e-6 if name == "adamw2018" else 1e-8) if eps is None else eps
    named = {key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad}
    undecayed = _biases_and_norms(model)
    hidden = hidden_matrices(model) if name == "muon" else {}
    if name == "muon" and not hidden:
        raise ConfigError("train.optimizer muon: this model has no matrix inside a stack of layers; take adamw")
    scale = 1.0 if adam_learning_rate is None or name != "muon" else adam_learning_rate / learning_rate
    rest = {key: parameter for key, parameter in named.items() if key not in hidden}
    groups = [
        _group({key: p for key, p in rest.items() if key not in undecayed}, scale, learning_rate, weight_decay),
        _group({key: p for key, p in rest.items() if key in undecayed}, scale, learning_rate, 0.0),
    ]
    groups = [group for group in groups if group["params"]]
    device = next(iter(named.values())).device
    if name == "adamw2018":
        return Optimizer([AdamW2018(groups, betas=betas, eps=eps)], "AdamW of 2018 (no bias correction)")
    fused = device.type in ("cpu", "cuda", "mps", "xpu")
    adamw = torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=fused)
    if name == "adamw":
        return Optimizer([adamw], f"AdamW{' (fused)' if fused else ''}")
    fast = choose_precision("auto", device)
    dtype = torch.bfloat16 if fast.name == "bf16" else torch.float32
    matrices = _group(hidden, 1.0, learning_rate, weight_decay)
    matrices["thirds"] = ["qkv" in key for key in hidden]
    muon = Muon([matrices], momentum=momentum, dtype=dtype)
    kind = str(dtype).removeprefix("torch.")
    about = f"Muon for {len(hidden)} matrices, orthogonalised in {kind} ({fast.reason}), AdamW for the rest"
    return Optimizer([muon, adamw], about)


def hidden_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable weights of linear layers that lead from hidden states to hidden states.

    Those are all in a stack of layers (an nn.ModuleList) and, outside of it, the square ones: the pooler and the dense
    layer of the MLM head. No embedding, and nothing that gives scores.
    """
    stacks = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    scores = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, (NspHead, LabelHead)))
    linear = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not f"{name}.".startswith(scores)
    }
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name in linear and parameter.requires_grad
        if name.startswith(stacks) or (stacks and parameter.shape[0] == parameter.shape[1])
    }


def check_every_parameter_once(model: nn.Module, optimizer: Optimizer) -> None:
    """TrainingError unless each trainable parameter of `model` is in exactly one group of `optimizer`."""
    found = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in model.named_parameters():
        times = found.count(id(parameter)) if parameter.requires_grad else 1
        if times != 1:
            raise TrainingError(f"parameter {name} is in {times} optimizer groups; each must be in exactly one")
    trainable = sum(parameter.requires_grad for parameter in model.parameters())
    if len(set(found)) > trainable:
        raise TrainingError(f"the optimizer holds {len(set(found)) - trainable} parameters that are not the model's")


class AdamW2018(torch.optim.Optimizer):
    """AdamWeightDecayOptimizer of the 2018 code: p -= lr * (m / (sqrt(v) + eps) + decay * p), no bias correction."""

    slots = ("exp_avg", "exp_avg_sq")

    def __init__(self, groups: list[Group], *, betas: tuple[float, float], eps: float):
        super().__init__(groups, {"betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            beta1, beta2 = group["betas"]
            means = _slots(self, parameters, "exp_avg")
            squares = _slots(self, parameters, "exp_avg_sq")
            torch._foreach_lerp_(means, gradients, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, group["eps"])
            if group["weight_decay"]:
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_addcdiv_(parameters, means, roots, -group["lr"])


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, then the nearest orthogonal matrix as the update.

    The update of an [R, C] matrix is scaled by 0.2 * sqrt(max(R, C)): the root mean square of a usual AdamW step.
    """

    slots = ("momentum_buffer",)

    def __init__(self, groups: list[Group], *, momentum: float, dtype: torch.dtype):
        super().__init__(groups, {"momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            both = zip(group["params"], group["thirds"], strict=True)
            pairs = [(parameter, third) for parameter, third in both if parameter.grad is not None]
            parameters = [parameter for parameter, _ in pairs]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            buffers = _slots(self, parameters, "momentum_buffer")
            torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
            updates = torch._foreach_lerp(gradients, buffers, group["momentum"])
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            targets: list[Tensor] = []
            steps: list[Tensor] = []
            for (parameter, third), update in zip(pairs, updates, strict=True):
                targets += parameter.chunk(3) if third else [parameter]
                steps += update.chunk(3) if third else [update]
            _add_orthogonal(targets, steps, group["lr"], self.dtype)


def orthogonalize(matrices_NRC: Tensor, dtype: torch.dtype) -> Tensor:
    """Newton-Schulz: [N, R, C] matrices with their singular values brought near 1 (0.7 to 1.2), computed in `dtype`."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x = matrices_NRC.to(dtype)
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _add_orthogonal(targets: Sequence[Tensor], updates: Sequence[Tensor], rate: float, dtype: torch.dtype) -> None:
    """target -= rate * 0.2 * sqrt(max(R, C)) * orthogonal(update); matrices that have a shape in common go together."""
    shapes: dict[torch.Size, list[int]] = {}
    for at, update in enumerate(updates):
        shapes.setdefault(update.shape, []).append(at)
    for shape, members in shapes.items():
        result = orthogonalize(torch.stack([updates[at] for at in members]), dtype)
        scale = rate * 0.2 * math.sqrt(max(shape))
        for at, update in zip(members, result, strict=True):
            targets[at].add_(update, alpha=-scale)


def _slots(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], slot: str) -> list[Tensor]:
    for parameter in parameters:
        if slot not in optimizer.state[parameter]:
            optimizer.state[parameter][slot] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return [optimizer.state[parameter][slot] for parameter in parameters]


def _biases_and_norms(model: nn.Module) -> set[str]:
    """Names of the parameters without weight decay: biases, and everything a norm owns. By kind, not by name."""
    found = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim < 2 or "norm" in type(module).__name__.lower():
                found.add(f"{prefix}.{name}" if prefix else name)
    return found


def _group(named: Mapping[str, Tensor], scale: float, rate: float, decay: float) -> Group:
    together = {"params": list(named.values()), "names": list(named)}
    return {**together, "lr": rate * scale, "lr_scale": scale, "weight_decay": decay}
