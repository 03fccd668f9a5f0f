//! Keeps lines whole where several logs are printed.

use std::io::{self, Write};

use bytes::{Bytes, BytesMut};

/// Longest line that is kept together, in bytes.
const LINE_MAX: usize = 1 << 20;

/// The lines of one container among those of others: complete, and prefixed with its name if requested.
#[derive(Debug, Default)]
pub(super) struct Lines {
    prefix: Bytes,
    out: Line,
    err: Line,
    /// Whether an incomplete last line is completed.
    completes: bool,
}

impl Lines {
    /// Lines that begin with that prefix.
    pub(super) fn with_prefix(prefix: String) -> Self {
        Self {
            prefix: prefix.into(),
            ..Self::default()
        }
    }

    /// The same among the lines of other logs, with each line on its own.
    pub(super) fn among_others(prefix: String) -> Self {
        Self {
            completes: true,
            ..Self::with_prefix(prefix)
        }
    }

    /// Writes the complete lines of standard output.
    pub(super) fn write_out(&mut self, bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
        self.out.write(bytes, &self.prefix, to)
    }

    /// Writes the complete lines of standard error.
    pub(super) fn write_err(&mut self, bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
        self.err.write(bytes, &self.prefix, to)
    }

    /// Writes an incomplete last line.
    pub(super) fn finish(self, out: &mut impl Write, err: &mut impl Write) -> io::Result<()> {
        self.out.finish(&self.prefix, self.completes, out)?;
        self.err.finish(&self.prefix, self.completes, err)
    }
}

/// A line that is not whole yet.
#[derive(Debug, Default)]
struct Line {
    begun: BytesMut,
    /// Whether the beginning of this line, which was too long, is written already.
    within: bool,
}

impl Line {
    fn write(&mut self, bytes: &[u8], prefix: &[u8], to: &mut impl Write) -> io::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            let ended = piece.ends_with(b"\n");
            if ended || self.begun.len() >= LINE_MAX {
                self.put(prefix, to)?;
                self.within = !ended;
            }
        }
        Ok(())
    }

    fn put(&mut self, prefix: &[u8], to: &mut impl Write) -> io::Result<()> {
        if !self.within {
            to.write_all(prefix)?;
        }
        to.write_all(&self.begun.split())
    }

    fn finish(mut self, prefix: &[u8], completes: bool, to: &mut impl Write) -> io::Result<()> {
        if !self.begun.is_empty() || self.within {
            if completes {
                self.begun.extend_from_slice(b"\n");
            }
            self.put(prefix, to)?;
        }
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_whole_and_each_has_its_prefix_once() {
        let mut line = Line::default();
        let mut shown = Vec::new();
        for piece in ["one\ntw", "o", "\n\nthr"] {
            line.write(piece.as_bytes(), b"[p] ", &mut shown).unwrap();
        }
        assert_eq!(text(&shown), "[p] one\n[p] two\n[p] \n");
        line.finish(b"[p] ", false, &mut shown).unwrap();
        assert_eq!(text(&shown), "[p] one\n[p] two\n[p] \n[p] thr");
        let mut among = Lines::among_others("[a] ".to_owned());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        among.write_out(b"one\ntwo", &mut out).unwrap();
        among.write_err(b"three\n", &mut err).unwrap();
        among.finish(&mut out, &mut err).unwrap();
        assert_eq!(text(&out), "[a] one\n[a] two\n");
        assert_eq!(text(&err), "[a] three\n");
        let mut line = Line::default();
        let mut shown = Vec::new();
        for _ in 0..3 {
            line.write(&vec![b'x'; LINE_MAX], b"[p] ", &mut shown)
                .unwrap();
        }
        line.write(b"end\nnext\n", b"[p] ", &mut shown).unwrap();
        assert_eq!(shown.len(), 3 * LINE_MAX + 17);
        assert!(text(&shown).ends_with("xend\n[p] next\n"));
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }
}
