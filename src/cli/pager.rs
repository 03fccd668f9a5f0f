//! Shows long text on a terminal page by page.

use std::io::{self, IsTerminal, Write as _};
use std::process::{Command, Stdio};

use super::{Outcome, print};

/// The pager where `PAGER` names none: it ends by itself where the text fits, and shows styles.
const PAGER: &str = "less -FRX";

/// Prints a text; on a terminal through the pager in the environment variable `PAGER`.
pub(super) fn page(text: &str, is_wanted: bool) -> Outcome {
    let pager = std::env::var("PAGER").unwrap_or_else(|_| PAGER.to_owned());
    if is_wanted && io::stdout().is_terminal() && !pager.trim().is_empty() {
        let child = Command::new("sh")
            .args(["-c", &pager])
            .stdin(Stdio::piped())
            .spawn();
        // 127: the shell found no such program.
        if let Ok(mut child) = child {
            if let Some(mut stdin) = child.stdin.take() {
                // A reader who quits before the end has seen enough.
                let _ = stdin.write_all(text.as_bytes());
            }
            if child.wait()?.code() != Some(127) {
                return Ok(());
            }
        }
    }
    print(text)
}
