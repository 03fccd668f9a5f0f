//! Parses the terminal sizes that clients send: consecutive JSON objects, split anywhere. Pure.
//!
//! Upstream: `handleResizeEvents` of `kubelet/pkg/cri/streaming/remotecommand/httpstream.go`.

use serde::Deserialize;

use super::session::TerminalSize;

/// Longest text of one size, in bytes. Real ones have thirty.
const TEXT_BYTES_MAX: usize = 1 << 10;

/// Takes text, gives sizes.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    text: Vec<u8>,
}

#[derive(Deserialize)]
struct Size {
    #[serde(rename = "Width", default)]
    width: u16,
    #[serde(rename = "Height", default)]
    height: u16,
}

/// Text that is not a size. Nothing after it can be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoSize;

impl Sizes {
    /// Adds text; returns the last size that is complete with it, if any.
    pub(super) fn push(&mut self, text: &[u8]) -> Result<Option<TerminalSize>, NoSize> {
        let mut last = None;
        // In pieces, so that a flood of sizes has a bound though it is no unfinished size.
        for piece in text.chunks(TEXT_BYTES_MAX) {
            self.text.extend_from_slice(piece);
            let mut sizes = serde_json::Deserializer::from_slice(&self.text).into_iter::<Size>();
            let mut read = 0;
            let broken = loop {
                match sizes.next() {
                    Some(Ok(size)) => {
                        read = sizes.byte_offset();
                        last = Some(TerminalSize {
                            width: size.width,
                            height: size.height,
                        });
                    }
                    Some(Err(error)) => break !error.is_eof(),
                    None => break false,
                }
            };
            self.text.drain(..read);
            if broken || self.text.len() > TEXT_BYTES_MAX {
                return Err(NoSize);
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_size_counts_however_it_is_cut(
            sent in prop::collection::vec(any::<(u16, u16)>(), 1..50), cut in 1usize..80,
        ) {
            let text: Vec<String> = sent
                .iter()
                .map(|(width, height)| format!("{{\"Width\":{width},\"Height\":{height}}}\n"))
                .collect();
            let text = text.concat();
            let mut sizes = Sizes::default();
            let mut last = None;
            for piece in text.as_bytes().chunks(cut) {
                last = sizes.push(piece).unwrap().or(last);
            }
            let (width, height) = *sent.last().unwrap();
            prop_assert_eq!(last, Some(TerminalSize { width, height }));
        }

        #[test]
        fn no_text_is_kept_for_ever(text in prop::collection::vec(any::<u8>(), 0..5000)) {
            let mut sizes = Sizes::default();
            let _ = sizes.push(&text);
            prop_assert!(sizes.text.len() <= 2 * TEXT_BYTES_MAX);
        }
    }

    #[test]
    fn what_is_no_size_is_an_error() {
        for text in ["nonsense", "7", "{\"Width\":70000}", "{\"Width\":-1}"] {
            assert_eq!(
                Sizes::default().push(text.as_bytes()),
                Err(NoSize),
                "{text}"
            );
        }
        let endless = " ".repeat(5 * TEXT_BYTES_MAX) + "{";
        assert_eq!(Sizes::default().push(endless.as_bytes()), Err(NoSize));
    }
}
