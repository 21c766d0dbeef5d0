"""The tests, in rooms that mirror the source; `support` has what several of them need."""

import pytest

pytest.register_assert_rewrite("tests.support")
