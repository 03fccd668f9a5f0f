//! Decodes the messages of a WebSocket with channels, in parts of any size. Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;

use super::CLOSE_CHANNEL;
use crate::negotiate::{Codec, Version};

/// Characters of base64 that are decoded together.
const QUARTET: usize = 4;

/// The content of a part of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Data(u8, Bytes),
    Close(u8),
    /// No data yet, or data that can't be decoded.
    Nothing,
}

/// The kind of the message being received.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Under {
    /// None was received yet.
    Start,
    /// Bytes of a channel.
    Binary(u8),
    /// Base64 of a channel's bytes, with what is left of a quartet.
    Base64(u8, Vec<u8>),
    /// The number of the channel to close, once it has arrived.
    Close(Option<u8>),
    /// Of no use.
    Broken,
}

/// Reads messages one after the other.
#[derive(Debug)]
pub(super) struct Messages {
    codec: Codec,
    version: Version,
    under: Under,
}

impl Messages {
    pub(super) fn new(codec: Codec, version: Version) -> Self {
        Self {
            codec,
            version,
            under: Under::Start,
        }
    }

    /// Decodes a part of a message; `last` if it is the final one. None if the connection must be
    /// closed because of it.
    pub(super) fn take(&mut self, mut part: Bytes, last: bool) -> Option<Decoded> {
        if self.under == Under::Start && !part.is_empty() {
            let first = part.split_to(1)[0];
            self.under = match self.codec {
                _ if self.version == Version::V5 && first == CLOSE_CHANNEL => Under::Close(None),
                Codec::Binary => Under::Binary(first),
                Codec::Base64 => Under::Base64(first.wrapping_sub(b'0'), Vec::new()),
            };
        }
        let (under, decoded) = match std::mem::replace(&mut self.under, Under::Start) {
            Under::Start => (Under::Start, Decoded::Nothing),
            Under::Binary(channel) => (Under::Binary(channel), Decoded::Data(channel, part)),
            Under::Base64(channel, left) => base64(channel, left, &part, last),
            Under::Close(channel) => {
                let channel = match (channel, &part[..]) {
                    (channel, []) => channel,
                    (None, [channel]) => Some(*channel),
                    // It names one.
                    _ => return None,
                };
                if last {
                    (Under::Start, Decoded::Close(channel?))
                } else {
                    (Under::Close(channel), Decoded::Nothing)
                }
            }
            Under::Broken => (Under::Broken, Decoded::Nothing),
        };
        if !last {
            self.under = under;
        }
        Some(match decoded {
            Decoded::Data(_, bytes) if bytes.is_empty() => Decoded::Nothing,
            decoded => decoded,
        })
    }
}

/// Decodes whole quartets; of the last part all.
fn base64(channel: u8, mut left: Vec<u8>, part: &[u8], last: bool) -> (Under, Decoded) {
    left.extend_from_slice(part);
    let whole = if last {
        left.len()
    } else {
        left.len() / QUARTET * QUARTET
    };
    let rest = left.split_off(whole);
    match BASE64_STANDARD.decode(&left) {
        Ok(bytes) => (
            Under::Base64(channel, rest),
            Decoded::Data(channel, bytes.into()),
        ),
        Err(_) => (Under::Broken, Decoded::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes a message in parts: bytes of a channel together, or a single control message.
    fn read(parts: &[&[u8]], codec: Codec, version: Version) -> Option<Decoded> {
        let mut messages = Messages::new(codec, version);
        let mut data: Option<(u8, Vec<u8>)> = None;
        for (at, part) in parts.iter().enumerate() {
            let last = at + 1 == parts.len();
            match messages.take(Bytes::copy_from_slice(part), last)? {
                Decoded::Data(channel, bytes) => {
                    data.get_or_insert((channel, Vec::new())).1.extend(bytes);
                }
                Decoded::Close(channel) => return Some(Decoded::Close(channel)),
                Decoded::Nothing => {}
            }
        }
        assert_eq!(messages.under, Under::Start);
        Some(data.map_or(Decoded::Nothing, |(channel, bytes)| {
            Decoded::Data(channel, bytes.into())
        }))
    }

    #[test]
    fn messages_are_read_as_upstream_reads_them() {
        let whole = |bytes: &'static [u8], codec, version| read(&[bytes], codec, version);
        let (binary, base64) = (Codec::Binary, Codec::Base64);
        let data = |channel, bytes: &'static str| Some(Decoded::Data(channel, bytes.into()));
        assert_eq!(whole(b"", binary, Version::V5), Some(Decoded::Nothing));
        assert_eq!(whole(b"\0", binary, Version::V5), Some(Decoded::Nothing));
        // streams 6
        assert_eq!(whole(b"\0hi", binary, Version::V5), data(0, "hi"));
        assert_eq!(
            whole(b"\xff\0", binary, Version::V5),
            Some(Decoded::Close(0))
        );
        assert_eq!(
            whole(b"\xff\x09", binary, Version::V5),
            Some(Decoded::Close(9))
        );
        assert_eq!(whole(b"\xff", binary, Version::V5), None);
        assert_eq!(whole(b"\xff\0\0", binary, Version::V5), None);
        // Only `v5` closes channels.
        let Some(Decoded::Data(255, _)) = whole(b"\xff\0", binary, Version::V4) else {
            panic!("closed")
        };
        assert_eq!(whole(b"0aGk=", base64, Version::V4), data(0, "hi"));
        assert_eq!(whole(b"4", base64, Version::V4), Some(Decoded::Nothing));
        assert_eq!(whole(b"0!", base64, Version::V4), Some(Decoded::Nothing));
    }

    #[test]
    fn parts_are_read_as_they_come() {
        let (binary, base64) = (Codec::Binary, Codec::Base64);
        let hi = Some(Decoded::Data(0, "hi".into()));
        let parts: &[&[u8]] = &[b"", b"\0", b"h", b"", b"i"];
        assert_eq!(read(parts, binary, Version::V4), hi);
        assert_eq!(read(&[b"0a", b"Gk", b"="], base64, Version::V4), hi);
        let closed = read(&[b"\xff", b"", b"\x02", b""], binary, Version::V5);
        // streams 6
        assert_eq!(closed, Some(Decoded::Close(2)));
        assert_eq!(read(&[b"\xff", b"\0", b"\0"], binary, Version::V5), None);
        // The first fragments are delivered before the last one arrives.
        let mut messages = Messages::new(binary, Version::V4);
        let first = messages.take("\0first".into(), false);
        assert_eq!(first, Some(Decoded::Data(0, "first".into())));
        // Base64 that breaks in the middle.
        let mut messages = Messages::new(base64, Version::V4);
        for (part, last) in [("0!!!!", false), ("aGk=", true)] {
            assert_eq!(messages.take(part.into(), last), Some(Decoded::Nothing));
        }
        let next = messages.take("0aGk=".into(), true);
        assert_eq!(next, Some(Decoded::Data(0, "hi".into())));
    }

    proptest! {
        #[test]
        fn no_parts_make_it_panic(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..9), any::<bool>()), 0..9),
        ) {
            for codec in [Codec::Binary, Codec::Base64] {
                for version in [Version::V3, Version::V4, Version::V5] {
                    let mut messages = Messages::new(codec, version);
                    for (part, last) in &parts {
                        let _ = messages.take(part.clone().into(), *last);
                    }
                }
            }
        }
    }
}
