use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, compress_to_output, create_comp_flags_from_zip_params,
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::super::headers::{DICTIONARY_ID, dictionary};
use super::*;

/// Frames as `github.com/moby/spdystream` v0.5.1 writes them on one connection, from
/// `streamclient golden` (hack/kube/streamclient).
const GOLDEN: [&str; 14] = [
    "80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff",
    "800300010000001700000003000000000000c22e555c92929907000000ffff",
    "800300010000001900000005000000000000c22ac5565c92925f5a02000000ffff",
    "800300010000001c0000000700000000000082cab114e41781338f85818501000000ffff",
    "8003000100000014000000090000000000006260606000000000ffff",
    "000000030000000668656c6c6f00",
    "0000000301000000",
    "800300060000000400000001",
    "80030003000000080000000500000005",
    "800300080000001100000007828a3382b2106312000000ffff",
    "800300040000000c000000010000000400000064",
    "80030009000000080000000700000001",
    "80030001000000120000000b000000000000c26702000000ffff",
    "80030007000000080000000000000000",
];

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .map(|digit| u8::try_from(digit.to_digit(16).unwrap()).unwrap())
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn golden() -> Vec<u8> {
    GOLDEN.iter().flat_map(|hex| bytes_of(hex)).collect()
}

fn opened(id: u32, headers: &[(&str, &str)]) -> Frame {
    let headers = headers.iter();
    let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Frame::SynStream {
        id,
        fin: false,
        unidirectional: false,
        headers: Headers(headers.collect()),
    }
}

fn data(id: u32, bytes: &'static str, fin: bool) -> Frame {
    let bytes = bytes.into();
    Frame::Data { id, fin, bytes }
}

/// All frames in bytes that come in pieces of this size, the pieces of DATA put together.
fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = Decoder::new();
    let mut frames: Vec<Frame> = Vec::new();
    for piece in bytes.chunks(cut) {
        decoder.buffer.extend_from_slice(piece);
        while let Some(frame) = decoder.next_frame()? {
            match (frames.last_mut(), frame) {
                (
                    Some(Frame::Data { id, fin, bytes }),
                    Frame::Data {
                        id: same,
                        fin: last,
                        bytes: more,
                    },
                ) if *id == same && !*fin && !more.is_empty() => {
                    *bytes = [bytes.as_ref(), more.as_ref()].concat().into();
                    *fin = last;
                }
                (_, frame) => frames.push(frame),
            }
        }
    }
    Ok(frames)
}

#[test]
fn the_dictionary_is_the_standards() {
    let dictionary = dictionary();
    assert_eq!(dictionary.len(), 1423);
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in &dictionary {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    assert_eq!(b << 16 | a, DICTIONARY_ID);
    let sum = Sha256::digest(&dictionary);
    let wanted = "51d27341373f923f3cd88e1eb7162aeaa3723d7585ff2399201dc06498407f02";
    // streams 2
    assert_eq!(sum[..], bytes_of(wanted)[..]);
}

#[test]
fn frames_of_go_are_understood_however_they_are_cut() {
    let wanted = vec![
        opened(1, &[("streamtype", "error")]),
        opened(3, &[("streamtype", "stdin")]),
        opened(5, &[("streamtype", "stdout")]),
        opened(7, &[("port", "8080")]),
        opened(9, &[]),
        data(3, "hello\0", false),
        data(3, "", true),
        Frame::Ping { id: 1 },
        Frame::RstStream { id: 5 },
        Frame::Headers { id: 7, fin: false },
        Frame::Ignored,
        Frame::Ignored,
        opened(11, &[("streamtype", "stdout")]),
        Frame::GoAway,
    ];
    let bytes = golden();
    for cut in [1, 2, 3, 7, 8, 9, 30, bytes.len()] {
        // streams 2
        assert_eq!(decode(&bytes, cut).unwrap(), wanted, "in pieces of {cut}");
    }
}

/// Ours: an empty block is stored, and flushed, so that Go's reader has read all of it.
#[test]
fn replies_are_as_go_reads_them() {
    let mut encoder = Encoder::default();
    let mut bytes = BytesMut::new();
    encoder.encode(&Send::SynReply { id: 1 }, &mut bytes);
    let first = "800300020000001800000001 78bbe3c6a7c2 000400fbff00000000 000000ffff";
    // streams 2
    assert_eq!(bytes, bytes_of(&first.replace(' ', "")));
    bytes.clear();
    encoder.encode(&Send::SynReply { id: 3 }, &mut bytes);
    let second = "800300020000001200000003 000400fbff00000000 000000ffff";
    assert_eq!(bytes, bytes_of(&second.replace(' ', "")));
}

#[test]
fn what_is_sent_can_be_read() {
    let mut encoder = Encoder::default();
    let mut bytes = BytesMut::new();
    let payload = Bytes::from(vec![7; 100_000]);
    for frame in [
        Send::SynReply { id: 1 },
        Send::SynReply { id: 3 },
        Send::Data {
            id: 3,
            fin: false,
            bytes: payload.clone(),
        },
        Send::Ping { id: 2 },
        Send::RstStream {
            id: 3,
            reset: Reset::Cancel,
        },
        Send::Data {
            id: 1,
            fin: true,
            bytes: Bytes::new(),
        },
        Send::GoAway { last: 3 },
    ] {
        encoder.encode(&frame, &mut bytes);
    }
    let (id, fin) = (3, false);
    let wanted = vec![
        Frame::Headers { id: 1, fin: false },
        Frame::Headers { id: 3, fin: false },
        Frame::Data {
            id,
            fin,
            bytes: payload,
        },
        Frame::Ping { id: 2 },
        Frame::RstStream { id: 3 },
        data(1, "", true),
        Frame::GoAway,
    ];
    for cut in [1, 10, 4096, bytes.len()] {
        assert_eq!(decode(&bytes, cut).unwrap(), wanted, "in pieces of {cut}");
    }
}

/// A `SYN_STREAM` whose header block inflates to these bytes.
fn syn_stream(blocks: &[Vec<u8>]) -> Vec<u8> {
    // Raw deflate; the header of zlib is written below, since this one has no dictionary.
    let mut compressor = CompressorOxide::new(create_comp_flags_from_zip_params(9, -15, 0));
    let mut wire = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        let mut compressed = Vec::new();
        if at == 0 {
            compressed.extend([0x78, 0xbb]);
            compressed.extend(DICTIONARY_ID.to_be_bytes());
        }
        // Without references to the dictionary, which are Go's to show.
        compress_to_output(&mut compressor, block, TDEFLFlush::Sync, |out| {
            compressed.extend_from_slice(out);
            true
        });
        wire.extend([0x80, 3, 0, 1, 0]);
        let length = u32::try_from(10 + compressed.len()).unwrap();
        wire.extend(&length.to_be_bytes()[1..]);
        let id = u32::try_from(2 * at + 1).unwrap();
        wire.extend(id.to_be_bytes());
        wire.extend([0; 6]);
        wire.extend(compressed);
    }
    wire
}

fn block(headers: &[(String, String)]) -> Vec<u8> {
    let mut bytes = u32::try_from(headers.len()).unwrap().to_be_bytes().to_vec();
    for field in headers.iter().flat_map(|(name, value)| [name, value]) {
        bytes.extend(u32::try_from(field.len()).unwrap().to_be_bytes());
        bytes.extend(field.as_bytes());
    }
    bytes
}

#[test]
fn a_hundred_blocks_keep_their_context() {
    let blocks: Vec<_> = (0..100)
        .map(|at| {
            let value = format!("{at:0>900}");
            block(&[
                ("streamtype".to_owned(), "data".to_owned()),
                ("x".to_owned(), value),
            ])
        })
        .collect();
    let frames = decode(&syn_stream(&blocks), 1000).unwrap();
    assert_eq!(frames.len(), 100);
    for (at, frame) in frames.iter().enumerate() {
        let Frame::SynStream { headers, .. } = frame else {
            panic!("{frame:?}")
        };
        // streams 2
        assert_eq!(headers.get("x"), Some(&*format!("{at:0>900}")));
        assert_eq!(headers.get("streamtype"), Some("data"));
    }
}

#[test]
fn hostile_frames_are_refused() {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let many: Vec<_> = (0..65).map(|at| header(&format!("h{at}"), "v")).collect();
    let long = "v".repeat(9000);
    let mut counted = block(&[]);
    counted[0] = 0x80;
    let mut trailing = block(&[]);
    trailing.push(0);
    let mut cut_short = block(&[header("name", "value")]);
    cut_short.truncate(12);
    let mut claims = block(&[header("name", "value")]);
    claims[4] = 0xff;
    for (what, bytes) in [
        ("a count of 2^31", counted),
        ("more than its headers", trailing),
        ("less than its headers", cut_short),
        ("a name of 4 GB", claims),
        ("too many", block(&many)),
        ("a long value", block(&[header("a", &long)])),
        (
            "the same twice",
            block(&[header("a", "1"), header("a", "2")]),
        ),
        ("capitals", block(&[header("Port", "1")])),
        ("no name", block(&[header("", "1")])),
        ("what inflates to 1 MB", vec![0; 1 << 20]),
        ("nothing", Vec::new()),
    ] {
        let wire = syn_stream(&[bytes]);
        assert_eq!(decode(&wire, 4096), Err(FrameError::Headers), "{what}");
    }
    for (hex, wanted) in [
        ("0000000000000001 61", FrameError::NoStream),
        ("8002000600000004 00000001", FrameError::Version(2)),
        ("8003000500000000", FrameError::Kind(5)),
        ("80030001 00ffffff", FrameError::TooLong(0x00ff_ffff)),
        ("8003000600000004 00000000", FrameError::Payload(PING)),
        ("8003000601000004 00000001", FrameError::Payload(PING)),
        (
            "8003000600000008 0000000100000001",
            FrameError::Payload(PING),
        ),
        (
            "8003000300000008 0000000100000000",
            FrameError::Payload(RST_STREAM),
        ),
        ("8003000300000008 0000000000000005", FrameError::NoStream),
        ("8003000300000004 00000001", FrameError::Payload(RST_STREAM)),
        ("8003000700000004 00000001", FrameError::Payload(GOAWAY)),
        ("8003000400000004 7fffffff", FrameError::Payload(SETTINGS)),
        ("8003000100000004 00000001", FrameError::Payload(SYN_STREAM)),
        (
            "800300010000000a 00000001000000000000",
            FrameError::Compression,
        ),
        // Without the dictionary, or with another.
        (
            "8003000100000010 00000001000000000000 789c01020304",
            FrameError::Compression,
        ),
        (
            "8003000100000010 00000001000000000000 78f901020304",
            FrameError::Compression,
        ),
    ] {
        let bytes = bytes_of(&hex.replace(' ', ""));
        // streams 2
        assert_eq!(decode(&bytes, 4096), Err(wanted), "{hex}");
    }
}

/// The length of a DATA frame costs nothing: its payload is handed on as it comes.
#[test]
fn a_long_data_frame_is_not_kept() {
    let mut decoder = Decoder::new();
    decoder
        .buffer
        .extend_from_slice(&[0, 0, 0, 1, 1, 0xff, 0xff, 0xff]);
    assert_eq!(decoder.next_frame(), Ok(None));
    let mut left = 0x00ff_ffff_usize;
    while left > 0 {
        let piece = left.min(50_000);
        decoder.buffer.extend_from_slice(&vec![1; piece]);
        left -= piece;
        let Ok(Some(Frame::Data { id: 1, fin, bytes })) = decoder.next_frame() else {
            panic!("no data")
        };
        // streams 2
        assert_eq!((bytes.len(), fin), (piece, left == 0));
        // streams 7
        assert!(decoder.buffer.is_empty());
    }
    assert_eq!(decoder.next_frame(), Ok(None));
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..50,
    ) {
        let _ = decode(&bytes, cut);
    }

    /// Real frames with some bytes changed, some cut out and some doubled.
    #[test]
    fn no_change_of_real_frames_makes_the_decoder_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..12),
        cut in 1usize..100,
    ) {
        let mut bytes = golden();
        for (at, byte, how) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => { bytes.remove(at); }
                _ => bytes.insert(at, byte),
            }
        }
        // streams 2
        prop_assert!(decode(&bytes, cut).map_or(true, |frames| frames.len() <= bytes.len()));
    }

    #[test]
    fn headers_survive_compression(
        streams in prop::collection::vec(
            prop::collection::btree_map("[a-z-]{1,20}", "[ -~]{0,300}", 0..20), 1..10,
        ),
        cut in 1usize..5000,
    ) {
        let streams: Vec<Vec<_>> = streams.into_iter().map(|all| all.into_iter().collect()).collect();
        let blocks: Vec<_> = streams.iter().map(|headers| block(headers)).collect();
        let got: Vec<_> = decode(&syn_stream(&blocks), cut)
            .unwrap()
            .into_iter()
            .map(|frame| match frame {
                Frame::SynStream { headers, .. } => headers.0,
                other => panic!("{other:?}"),
            })
            .collect();
        prop_assert_eq!(got, streams);
    }
}
