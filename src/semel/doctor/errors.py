"""The doctor's own error: an input that cannot be used. Its text names the option or the file, and says what to do."""

from __future__ import annotations

from semel.errors import SemelError


class DoctorError(SemelError):
    """The doctor cannot use an input or an option. Correct the input or option that the text names."""
