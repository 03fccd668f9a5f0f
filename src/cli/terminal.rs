//! The user's terminal: in raw mode while a remote terminal is attached, and always restored
//! afterwards.

use std::io::{self, IsTerminal};

use mirrorlet_streaming::TerminalSize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Standard input's terminal in raw mode. Restored on drop, also after a panic.
pub(super) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Switches to raw mode: every key is sent to the remote side, including Ctrl-C.
    ///
    /// # Errors
    /// The system refused.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Whether standard input is a terminal.
pub(super) fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// The size of our terminal, if there is one.
pub(super) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout()));
    size.ok()
        .map(|size| TerminalSize {
            width: size.ws_col,
            height: size.ws_row,
        })
        .filter(|size| size.is_usable())
}
