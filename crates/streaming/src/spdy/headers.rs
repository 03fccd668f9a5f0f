//! Header blocks of SPDY: names and values, compressed with one zlib stream per direction and
//! connection, with the dictionary of the standard. Pure.
//!
//! Received headers are inflated with a window that begins with the dictionary. Sent blocks are always
//! empty, because a reply to a stream has no headers; they are stored, not deflated, which is also
//! valid zlib and saves the memory of a compressor for each connection.
//!
//! Upstream: `spdy/read.go` and `spdy/dictionary.go` of `github.com/moby/spdystream`.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::frame::FrameError;

/// Words of the dictionary, each of which comes with its length before it.
const WORDS: [&str; 65] = [
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// The rest of the dictionary.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// Adler-32 of the dictionary, its identifier in a zlib stream.
pub(super) const DICTIONARY_ID: u32 = 0xe3c6_a7c2;

/// Deflate refers back this far at most; a power of two.
const WINDOW_BYTES: usize = 32 << 10;

/// Most bytes of an inflated block. Real ones have a hundred.
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// Most headers of a block. Real ones have four.
const HEADERS_MAX: usize = 64;

/// Longest name or value, in bytes.
const FIELD_BYTES_MAX: usize = 8 << 10;

/// The dictionary.
pub(super) fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in WORDS {
        // None is longer than a line.
        bytes.extend(u32::try_from(word.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(word.as_bytes());
    }
    bytes.extend(TAIL.as_bytes());
    bytes
}

/// Headers of a stream. Names are lower case.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Headers(pub(super) Vec<(String, String)>);

impl Headers {
    /// The value of a header.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(had, _)| had == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Inflates the blocks of one direction, in their order of arrival.
pub(super) struct Inflater {
    state: Box<DecompressorOxide>,
    window: Box<[u8]>,
    at: usize,
    /// Whether the zlib header was received.
    begun: bool,
}

impl Inflater {
    pub(super) fn new() -> Self {
        let dictionary = dictionary();
        let mut window = vec![0; WINDOW_BYTES];
        window[..dictionary.len()].copy_from_slice(&dictionary);
        Self {
            state: Box::default(),
            window: window.into_boxed_slice(),
            at: dictionary.len(),
            begun: false,
        }
    }

    /// Returns the headers of the next block.
    ///
    /// # Errors
    /// The block is invalid, or exceeds our limits. No later block can be read then.
    pub(super) fn block(&mut self, mut compressed: &[u8]) -> Result<Headers, FrameError> {
        if !self.begun {
            let Some((header, rest)) = compressed.split_first_chunk::<6>() else {
                return Err(FrameError::Compression);
            };
            check_zlib_header(*header)?;
            compressed = rest;
            self.begun = true;
        }
        let mut block = Vec::new();
        loop {
            let flags = TINFL_FLAG_HAS_MORE_INPUT;
            let (status, read, wrote) = decompress(
                &mut self.state,
                compressed,
                &mut self.window,
                self.at,
                flags,
            );
            compressed = compressed.get(read..).ok_or(FrameError::Compression)?;
            let wrote = self.window.get(self.at..self.at + wrote);
            let wrote = wrote.ok_or(FrameError::Compression)?;
            if block.len() + wrote.len() > BLOCK_BYTES_MAX {
                return Err(FrameError::Headers);
            }
            block.extend_from_slice(wrote);
            self.at = (self.at + wrote.len()) % WINDOW_BYTES;
            match status {
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput if compressed.is_empty() => break,
                // The stream must last as long as the connection.
                _ => return Err(FrameError::Compression),
            }
        }
        parse(&block)
    }
}

fn check_zlib_header(header: [u8; 6]) -> Result<(), FrameError> {
    let [method, flags, id @ ..] = header;
    let deflate = method & 0x0f == 8 && method >> 4 <= 7;
    let sound = u16::from_be_bytes([method, flags]).is_multiple_of(31);
    let with_dictionary = flags & 0x20 != 0;
    if deflate && sound && with_dictionary && u32::from_be_bytes(id) == DICTIONARY_ID {
        Ok(())
    } else {
        Err(FrameError::Compression)
    }
}

fn parse(block: &[u8]) -> Result<Headers, FrameError> {
    let (count, mut rest) = number(block)?;
    if count > HEADERS_MAX {
        return Err(FrameError::Headers);
    }
    let mut headers: Vec<(String, String)> = Vec::with_capacity(count);
    for _ in 0..count {
        let (name, after) = field(rest)?;
        let (value, after) = field(after)?;
        rest = after;
        let lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        if name.is_empty() || !lower || headers.iter().any(|(had, _)| had == name) {
            return Err(FrameError::Headers);
        }
        headers.push((name.to_owned(), value.to_owned()));
    }
    if rest.is_empty() {
        Ok(Headers(headers))
    } else {
        Err(FrameError::Headers)
    }
}

fn number(bytes: &[u8]) -> Result<(usize, &[u8]), FrameError> {
    let (number, rest) = bytes.split_first_chunk().ok_or(FrameError::Headers)?;
    let number = usize::try_from(u32::from_be_bytes(*number)).map_err(|_| FrameError::Headers)?;
    Ok((number, rest))
}

fn field(bytes: &[u8]) -> Result<(&str, &[u8]), FrameError> {
    let (length, rest) = number(bytes)?;
    if length > FIELD_BYTES_MAX {
        return Err(FrameError::Headers);
    }
    let (field, rest) = rest.split_at_checked(length).ok_or(FrameError::Headers)?;
    let field = std::str::from_utf8(field).map_err(|_| FrameError::Headers)?;
    Ok((field, rest))
}

/// Writes the header blocks of one direction, all of which are empty.
#[derive(Debug, Default)]
pub(super) struct EmptyBlocks {
    begun: bool,
}

impl EmptyBlocks {
    /// Appends the next block: a stored piece with a count of zero, and an empty one, as a flush ends
    /// it.
    pub(super) fn next_block(&mut self, out: &mut Vec<u8>) {
        if !self.begun {
            self.begun = true;
            // Deflate with a window of 32 KiB, and a dictionary.
            out.extend([0x78, 0xbb]);
            out.extend(DICTIONARY_ID.to_be_bytes());
        }
        out.extend([0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0]);
        out.extend([0, 0, 0, 0xff, 0xff]);
    }
}
