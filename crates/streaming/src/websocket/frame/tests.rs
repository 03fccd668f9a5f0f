use proptest::prelude::*;

use super::*;

/// A frame as a client sends it.
fn frame(fin: bool, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x34, 0x56, 0x78];
    let mut out = vec![if fin { FIN | kind } else { kind }];
    match payload.len() {
        length @ 0..126 => out.push(MASKED | u8::try_from(length).unwrap()),
        length @ 126..=0xffff => {
            out.push(MASKED | LENGTH_16);
            out.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            out.push(MASKED | LENGTH_64);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend(mask);
    let masked = payload.iter().zip(mask.iter().cycle());
    out.extend(masked.map(|(byte, mask)| byte ^ mask));
    out
}

/// All events of bytes that come in pieces of this size.
fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Event>, FrameError> {
    let mut decoder = Decoder::default();
    let mut events = Vec::new();
    for piece in bytes.chunks(cut) {
        decoder.buffer.extend_from_slice(piece);
        while let Some(event) = decoder.next_event()? {
            events.push(event);
        }
    }
    Ok(events)
}

/// Messages put together, each with whether it is text, and control frames between.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut all = Vec::new();
    let mut message = Vec::new();
    for event in events {
        if let Event::Data { text, bytes, last } = event {
            message.extend_from_slice(&bytes);
            if last {
                let bytes = std::mem::take(&mut message).into();
                all.push(Event::Data { text, bytes, last });
            }
        } else {
            all.push(event);
        }
    }
    all
}

fn data(text: bool, bytes: impl Into<Bytes>) -> Event {
    let (bytes, last) = (bytes.into(), true);
    Event::Data { text, bytes, last }
}

#[test]
fn a_long_message_is_not_kept() {
    let whole = frame(true, BINARY, &vec![7; 30 << 20]);
    let mut decoder = Decoder::default();
    let mut handed_on = 0;
    // All but its last byte.
    for piece in whole[..whole.len() - 1].chunks(10_000) {
        decoder.buffer.extend_from_slice(piece);
        while let Some(event) = decoder.next_event().unwrap() {
            let Event::Data { bytes, last, .. } = event else {
                panic!("{event:?}")
            };
            assert!(!last && bytes.iter().all(|byte| *byte == 7));
            handed_on += bytes.len();
        }
        // streams 7
        assert!(decoder.buffer.len() < 16, "{}", decoder.buffer.len());
    }
    assert_eq!(handed_on, (30 << 20) - 1);
}

#[test]
fn fragments_and_what_comes_between_are_told_apart() {
    let wire = [
        frame(false, TEXT, b"a"),
        frame(true, PING, b"here?"),
        frame(false, CONTINUATION, b""),
        frame(true, CONTINUATION, b"b"),
        frame(true, PONG, b""),
        frame(true, BINARY, b""),
        frame(true, CLOSE, &[3, 232]),
    ]
    .concat();
    for cut in [1, 3, wire.len()] {
        let wanted = [
            Event::Ping("here?".into()),
            data(true, "ab"),
            Event::Pong,
            data(false, ""),
            Event::Close(Bytes::from_static(&[3, 232])),
        ];
        // streams 6
        assert_eq!(joined(decode(&wire, cut).unwrap()), wanted, "{cut}");
    }
}

#[test]
fn hostile_frames_are_refused() {
    let long = |kind: u8| {
        let mut head = vec![FIN | kind, MASKED | LENGTH_64];
        head.extend((64_u64 << 30).to_be_bytes());
        head.extend([0; 4]);
        head
    };
    for (what, bytes, wanted) in [
        (
            "reserved bits",
            vec![0xc2, 0x80, 0, 0, 0, 0],
            FrameError::Reserved,
        ),
        ("no mask", vec![0x82, 0x00], FrameError::NoMask),
        ("an unknown kind", frame(true, 3, b""), FrameError::Kind(3)),
        (
            "an unknown control frame",
            frame(true, 11, b""),
            FrameError::Kind(11),
        ),
        (
            "a fragment of nothing",
            frame(true, CONTINUATION, b""),
            FrameError::Order,
        ),
        (
            "a message in another",
            [frame(false, TEXT, b""), frame(true, BINARY, b"")].concat(),
            FrameError::Order,
        ),
        ("64 GB", long(BINARY), FrameError::TooLong(64 << 30)),
        ("a ping of 64 GB", long(PING), FrameError::Control),
        (
            "a ping in fragments",
            frame(false, PING, b""),
            FrameError::Control,
        ),
        (
            "32 MB and one byte, in two",
            [
                frame(false, BINARY, &vec![0; 32 << 20]),
                frame(true, CONTINUATION, b"x"),
            ]
            .concat(),
            FrameError::TooLong((32 << 20) + 1),
        ),
    ] {
        assert_eq!(decode(&bytes, 1 << 20), Err(wanted), "{what}");
    }
}

proptest! {
    #[test]
    fn messages_survive_any_cut(
        sent in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300), 1usize..100), 0..8),
        cut in 1usize..200,
    ) {
        let mut wire = Vec::new();
        for (text, payload, fragment) in &sent {
            let mut kind = if *text { TEXT } else { BINARY };
            for piece in payload.chunks(*fragment) {
                wire.extend(frame(false, kind, piece));
                kind = CONTINUATION;
            }
            wire.extend(frame(true, kind, b""));
        }
        let wanted: Vec<_> = sent.iter().map(|(text, payload, _)| data(*text, payload.clone())).collect();
        // streams 6
        prop_assert_eq!(joined(decode(&wire, cut).unwrap()), wanted);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..50) {
        let _ = decode(&bytes, cut);
    }
}

#[test]
fn frames_are_written_with_each_form_of_length() {
    for (length, head) in [
        (0, &[0x82, 1][..]),
        (124, &[0x82, 125]),
        (125, &[0x82, 126, 0, 126]),
        (65_534, &[0x82, 126, 255, 255]),
        (65_535, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        let mut out = BytesMut::new();
        Send::Binary(9, vec![7; length].into()).encode(&mut out);
        // streams 6
        assert_eq!(out[..head.len()], *head, "{length}");
        assert_eq!(out[head.len()], 9);
        assert_eq!(out.len(), head.len() + 1 + length);
        // A tunnel writes the same head, and its bytes after it.
        let mut out = BytesMut::new();
        binary_head(length + 1, &mut out);
        assert_eq!(out[..], *head, "{length}");
    }
    let mut out = BytesMut::new();
    for frame in [
        Send::Ping,
        Send::Pong("p".into()),
        Send::Text("t".into()),
        NORMAL,
    ] {
        frame.encode(&mut out);
    }
    assert_eq!(&out[..], b"\x89\0\x8a\x01p\x81\x01t\x88\x02\x03\xe8");
}
