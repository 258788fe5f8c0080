"""The subcommands of ``tideload``. What is heavy they import when they run."""
