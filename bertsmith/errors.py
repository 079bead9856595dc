"""Every error bertsmith raises on purpose.

BertsmithError                  exit code 1: the input or the settings are wrong
├── ConfigError                 a recipe, a setting or an argument
│   └── UsageError              exit code 2: the command line itself
├── FileError                   the file system: missing, unreadable, read-only, full
├── VocabularyError             a vocabulary that cannot be read or made
├── CorpusError                 raw text
│   └── ShardError              a prepared corpus
├── CheckpointError             a model folder
├── TaskError                   labelled data and what it should predict
├── InputError                  a text or batch the model cannot take
├── TrainingError               a run that cannot go on
│   ├── StateError              its saved state
│   └── NonFiniteLoss           NaN or infinity in loss or gradient
├── MissingExtra                an optional package is not installed
└── Interrupted                 exit code 130: stopped by the user, state saved
"""


class BertsmithError(Exception):
    exit_code = 1


class ConfigError(BertsmithError):
    pass


class UsageError(ConfigError):
    exit_code = 2


class FileError(BertsmithError):
    pass


class VocabularyError(BertsmithError):
    pass


class CorpusError(BertsmithError):
    pass


class ShardError(CorpusError):
    pass


class CheckpointError(BertsmithError):
    pass


class TaskError(BertsmithError):
    pass


class InputError(BertsmithError):
    pass


class TrainingError(BertsmithError):
    pass


class StateError(TrainingError):
    pass


class NonFiniteLoss(TrainingError):
    pass


class MissingExtra(BertsmithError):
    """`extra` is the name in `pip install 'bertsmith[extra]'`."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs the package {package}: pip install 'bertsmith[{extra}]'")
        self.package, self.extra = package, extra


class Interrupted(BertsmithError):
    exit_code = 130
