"""One thread a test process: the tests run side by side, and threads that wait for each other's core wait long.

Set before torch is imported anywhere, and inherited by the commands that tests start; a test about threads asks for
them by setting.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
