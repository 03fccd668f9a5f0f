//! Texts of objects that are being sent: a long one is encoded once for all its clients.
//!
//! A client that doesn't read keeps its text in memory for as long as that takes.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

/// Maximum length of a text that is copied for each client, in bytes.
pub(super) const SHORT_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a text that are handed to a connection at a time: it copies what it can't send yet.
const SLICE_BYTES: usize = 32 << 10;

/// The form of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextForm {
    /// An event of a watch, of that type.
    Event(&'static str),
    /// An item of a list.
    Item,
}

/// A long text that at least one client is being sent.
#[derive(Debug)]
struct Long {
    form: TextForm,
    object: Weak<Value>,
    text: Weak<Vec<u8>>,
}

/// A text that is shared.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The long texts that are being sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Texts(Arc<Mutex<Vec<Long>>>);

impl Texts {
    /// The text of an object in that format: the one that is being sent to another client, otherwise a
    /// new one.
    pub(super) fn of(
        &self,
        form: TextForm,
        object: &Arc<Value>,
        encode: impl FnOnce() -> Vec<u8>,
    ) -> Bytes {
        if let Some(text) = self.find(form, object) {
            return Bytes::from_owner(Shared(text));
        }
        let text = encode();
        if text.len() <= SHORT_BYTES_MAX {
            return text.into();
        }
        let text = Arc::new(text);
        let mut long = self.0.lock();
        long.retain(|long| long.text.strong_count() > 0);
        long.push(Long {
            form,
            object: Arc::downgrade(object),
            text: Arc::downgrade(&text),
        });
        Bytes::from_owner(Shared(text))
    }

    fn find(&self, form: TextForm, object: &Arc<Value>) -> Option<Arc<Vec<u8>>> {
        let long = self.0.lock();
        // An object that is referred to here can't have given its place to another.
        let mut long = long.iter().filter(|long| {
            long.form == form && std::ptr::eq(long.object.as_ptr(), &raw const **object)
        });
        long.find_map(|long| long.text.upgrade())
    }
}

/// A value as JSON, in about that many bytes.
pub(super) fn encoded(value: &impl Serialize, bytes: usize) -> Vec<u8> {
    /// The bytes of an event besides its object.
    const AROUND: usize = 64;
    let mut text = Vec::with_capacity(bytes + AROUND);
    // A value with text keys can always be encoded into a vector.
    let _ = serde_json::to_writer(&mut text, value);
    text
}

/// The pieces in which a text is passed to a connection.
pub(super) fn slices(text: Bytes) -> impl Iterator<Item = Bytes> {
    let ends = (0..text.len()).step_by(SLICE_BYTES);
    ends.map(move |from| text.slice(from..text.len().min(from + SLICE_BYTES)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(length: usize) -> Vec<u8> {
        vec![b'x'; length]
    }

    #[test]
    fn a_long_text_is_encoded_once_for_all_that_are_sent_it() {
        let texts = Texts::default();
        let (one, other) = (Arc::new(json!(1)), Arc::new(json!(1)));
        let long = || text(SHORT_BYTES_MAX + 1);
        let first = texts.of(TextForm::Item, &one, long);
        let again = texts.of(TextForm::Item, &one, || unreachable!("it is held"));
        // embedded 60
        assert_eq!(first.as_ptr(), again.as_ptr());
        let event = texts.of(TextForm::Event("ADDED"), &one, long);
        let of_other = texts.of(TextForm::Item, &other, long);
        assert_ne!(first.as_ptr(), event.as_ptr());
        assert_ne!(first.as_ptr(), of_other.as_ptr());
        assert_eq!(texts.0.lock().len(), 3);
        drop((first, again, event, of_other));
        // What nobody is sent any more is not held.
        assert_eq!(texts.of(TextForm::Item, &one, || text(1)), text(1));
        texts.of(TextForm::Item, &one, long);
        assert_eq!(texts.0.lock().len(), 1);
    }

    #[test]
    fn a_text_is_handed_out_in_pieces() {
        for length in [0, 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES - 1] {
            let pieces: Vec<_> = slices(text(length).into()).collect();
            assert!(pieces.iter().all(|piece| piece.len() <= SLICE_BYTES));
            assert_eq!(pieces.len(), length.div_ceil(SLICE_BYTES));
            assert_eq!(pieces.concat(), text(length));
        }
    }
}
