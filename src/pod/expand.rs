//! `$(VAR)` expansion of commands, arguments and env values.
