//! The streams of a SPDY connection: the open ones, and the replies to the client's frames. Pure.
//!
//! Only clients open streams. Each is answered immediately, because a client opens the next one only
//! then. This dialect has no flow control: a slow reader blocks the whole connection.
//!
//! Upstream: `connection.go` of `github.com/moby/spdystream`.

use std::collections::HashMap;

use bytes::Bytes;

use super::frame::{Frame, Reset, Send};
use super::headers::Headers;

/// Maximum number of open streams on one connection. A forwarded connection takes two.
pub(super) const STREAMS_MAX: usize = 512;

/// An event of a stream, caused by a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A stream was opened.
    Opened { id: u32, headers: Headers },
    /// Bytes of an open stream arrived; empty only at its end.
    Data { id: u32, bytes: Bytes },
    /// The client sends no more on a stream.
    End { id: u32 },
    /// A stream has ended in both directions.
    Reset { id: u32 },
    /// The client opens no more streams.
    GoAway,
}

/// The effects of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Received {
    /// To be sent at once.
    pub(super) answer: Option<Send>,
    /// At most two: bytes and their end, or a stream and its end.
    pub(super) events: Vec<Event>,
    /// Whether this counts as activity of the client; the reply to our own ping doesn't.
    pub(super) active: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// The client sends no more.
    remote_done: bool,
    /// We send no more.
    local_done: bool,
}

/// The streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: HashMap<u32, Stream>,
    /// Highest id that a client used.
    last: u32,
    gone_away: bool,
}

impl Streams {
    /// Takes a frame that came.
    pub(super) fn receive(&mut self, frame: Frame) -> Received {
        let mut received = Received {
            active: true,
            ..Received::default()
        };
        match frame {
            Frame::SynStream {
                id,
                fin,
                unidirectional,
                headers,
            } => match self.may_open(id) {
                Ok(()) => {
                    self.last = id;
                    let stream = Stream {
                        remote_done: fin,
                        local_done: unidirectional,
                    };
                    if !fin || !unidirectional {
                        self.open.insert(id, stream);
                    }
                    received.answer = Some(Send::SynReply { id });
                    received.events.push(Event::Opened { id, headers });
                    if fin {
                        received.events.push(Event::End { id });
                    }
                }
                Err(Some(reset)) => received.answer = Some(Send::RstStream { id, reset }),
                Err(None) => {}
            },
            Frame::Data { id, fin, bytes } => {
                if self.open.get(&id).is_some_and(|open| !open.remote_done) {
                    if !bytes.is_empty() {
                        received.events.push(Event::Data { id, bytes });
                    }
                    if fin {
                        self.remote_end(id, &mut received);
                    }
                }
            }
            Frame::Headers { id, fin } => {
                if fin && self.open.get(&id).is_some_and(|open| !open.remote_done) {
                    self.remote_end(id, &mut received);
                }
            }
            Frame::RstStream { id } => {
                if self.open.remove(&id).is_some() {
                    received.events.push(Event::Reset { id });
                }
            }
            // Clients' pings are odd.
            Frame::Ping { id } if id % 2 == 1 => received.answer = Some(Send::Ping { id }),
            Frame::Ping { .. } => received.active = false,
            Frame::GoAway => {
                self.gone_away = true;
                received.events.push(Event::GoAway);
            }
            Frame::Ignored => {}
        }
        received
    }

    /// Whether a client may open a stream; if not, how it is answered, if at all.
    fn may_open(&mut self, id: u32) -> Result<(), Option<Reset>> {
        if self.gone_away {
            return Err(None);
        }
        if id.is_multiple_of(2) || id <= self.last {
            return Err(Some(Reset::Protocol));
        }
        if self.open.len() >= STREAMS_MAX {
            self.last = id;
            return Err(Some(Reset::Refused));
        }
        Ok(())
    }

    fn remote_end(&mut self, id: u32, received: &mut Received) {
        received.events.push(Event::End { id });
        if let Some(open) = self.open.get_mut(&id) {
            open.remote_done = true;
            if open.local_done {
                self.open.remove(&id);
            }
        }
    }

    /// Whether something can be sent on a stream.
    pub(super) fn writable(&self, id: u32) -> bool {
        self.open.get(&id).is_some_and(|open| !open.local_done)
    }

    /// Records that the server sends no more on a stream; returns whether that is a change.
    pub(super) fn finish(&mut self, id: u32) -> bool {
        let Some(open) = self.open.get_mut(&id).filter(|open| !open.local_done) else {
            return false;
        };
        open.local_done = true;
        if open.remote_done {
            self.open.remove(&id);
        }
        true
    }

    /// Records that a stream is over; returns whether that is a change.
    pub(super) fn reset(&mut self, id: u32) -> bool {
        self.open.remove(&id).is_some()
    }

    /// Records that no more streams are accepted, and returns the last accepted one.
    pub(super) fn go_away(&mut self) -> u32 {
        self.gone_away = true;
        self.last
    }
}

#[cfg(test)]
mod tests;
