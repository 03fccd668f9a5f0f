use proptest::prelude::*;

use super::*;

fn syn(id: u32) -> Frame {
    Frame::SynStream {
        id,
        fin: false,
        unidirectional: false,
        headers: Headers::default(),
    }
}

fn data(id: u32, fin: bool) -> Frame {
    let bytes = "x".into();
    Frame::Data { id, fin, bytes }
}

fn reset(id: u32, reset: Reset) -> Send {
    Send::RstStream { id, reset }
}

#[test]
fn every_stream_is_answered_at_once() {
    let mut streams = Streams::default();
    for id in [1, 3, 9] {
        let received = streams.receive(syn(id));
        // streams 3
        assert_eq!(received.answer, Some(Send::SynReply { id }));
        let headers = Headers::default();
        assert_eq!(received.events, [Event::Opened { id, headers }]);
    }
    // Even, repeated and lower ids are not a client's to use.
    for id in [2, 10, 9, 5] {
        let received = streams.receive(syn(id));
        assert_eq!(received.answer, Some(reset(id, Reset::Protocol)), "{id}");
        assert_eq!(received.events, []);
    }
    assert_eq!(streams.go_away(), 9);
}

#[test]
fn streams_have_a_bound() {
    let mut streams = Streams::default();
    let mut id = 1;
    for _ in 0..STREAMS_MAX {
        assert_eq!(streams.receive(syn(id)).answer, Some(Send::SynReply { id }));
        id += 2;
    }
    // streams 3
    assert_eq!(
        streams.receive(syn(id)).answer,
        Some(reset(id, Reset::Refused))
    );
    assert!(streams.reset(1));
    id += 2;
    assert_eq!(streams.receive(syn(id)).answer, Some(Send::SynReply { id }));
}

#[test]
fn a_stream_is_over_when_both_have_said_their_last() {
    let mut streams = Streams::default();
    streams.receive(syn(1));
    let bytes = Bytes::from("x");
    let both = [Event::Data { id: 1, bytes }, Event::End { id: 1 }];
    // streams 3
    assert_eq!(streams.receive(data(1, true)).events, both);
    // After its last a client has nothing to say.
    assert_eq!(streams.receive(data(1, true)).events, []);
    assert!(streams.writable(1));
    assert!(streams.finish(1));
    assert!(!streams.writable(1) && !streams.finish(1));
    assert!(streams.open.is_empty());

    // The other way round.
    streams.receive(syn(3));
    assert!(streams.finish(3));
    assert!(!streams.writable(3));
    assert_eq!(streams.receive(data(3, false)).events.len(), 1);
    assert_eq!(
        streams.receive(Frame::Headers { id: 3, fin: true }).events,
        [Event::End { id: 3 }]
    );
    assert!(streams.open.is_empty());
}

#[test]
fn a_reset_ends_one_stream() {
    let mut streams = Streams::default();
    streams.receive(syn(1));
    streams.receive(syn(3));
    let received = streams.receive(Frame::RstStream { id: 1 });
    // streams 3
    assert_eq!(received.events, [Event::Reset { id: 1 }]);
    assert_eq!(received.answer, None);
    assert!(!streams.writable(1) && streams.writable(3));
    assert_eq!(streams.receive(Frame::RstStream { id: 1 }).events, []);
    assert_eq!(streams.receive(data(1, false)).events, []);
}

#[test]
fn only_a_clients_ping_is_sent_back_and_counts() {
    let mut streams = Streams::default();
    let received = streams.receive(Frame::Ping { id: 7 });
    assert_eq!(received.answer, Some(Send::Ping { id: 7 }));
    assert!(received.active);
    assert_eq!(streams.receive(Frame::Ping { id: 8 }), Received::default());
}

#[test]
fn after_goaway_streams_go_on_and_none_is_opened() {
    let mut streams = Streams::default();
    streams.receive(syn(1));
    assert_eq!(streams.receive(Frame::GoAway).events, [Event::GoAway]);
    let received = streams.receive(syn(3));
    assert_eq!((received.answer, received.events), (None, vec![]));
    assert_eq!(streams.receive(data(1, false)).events.len(), 1);
}

fn frames() -> impl Strategy<Value = Frame> {
    let id = 1u32..12;
    prop_oneof![
        (id.clone(), any::<(bool, bool)>()).prop_map(|(id, (fin, unidirectional))| {
            Frame::SynStream {
                id,
                fin,
                unidirectional,
                headers: Headers::default(),
            }
        }),
        (id.clone(), any::<bool>()).prop_map(|(id, fin)| data(id, fin)),
        (id.clone(), any::<bool>()).prop_map(|(id, fin)| Frame::Headers { id, fin }),
        id.clone().prop_map(|id| Frame::RstStream { id }),
        id.prop_map(|id| Frame::Ping { id }),
        Just(Frame::Ignored),
    ]
}

proptest! {
    /// Events of a stream begin with its opening, end once, and nothing follows its end or its
    /// reset, for any frames of a client.
    #[test]
    fn events_of_a_stream_come_in_order(
        sent in prop::collection::vec((frames(), 0u8..6, 1u32..12), 0..200),
    ) {
        let mut streams = Streams::default();
        let mut listening = std::collections::HashSet::new();
        let mut opened = std::collections::HashSet::new();
        for (frame, local, id) in sent {
            for event in streams.receive(frame).events {
                match event {
                    Event::Opened { id, .. } => {
                        prop_assert!(opened.insert(id), "{} twice", id);
                        listening.insert(id);
                    }
                    // streams 3
                    Event::Data { id, .. } => prop_assert!(listening.contains(&id)),
                    Event::End { id } => prop_assert!(listening.remove(&id)),
                    Event::Reset { id } => {
                        prop_assert!(opened.contains(&id));
                        listening.remove(&id);
                    }
                    Event::GoAway => {}
                }
            }
            match local {
                0 => { streams.finish(id); }
                1 if streams.reset(id) => { listening.remove(&id); }
                _ => {}
            }
            prop_assert!(streams.open.values().all(|open| !open.remote_done || !open.local_done));
        }
    }
}
