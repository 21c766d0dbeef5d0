"""The tests, in folders that mirror the source; `support` has shared code."""

import pytest

pytest.register_assert_rewrite("tests.support")
