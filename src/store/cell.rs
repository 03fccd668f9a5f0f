//! One-writer cells: the newest value, published only when it changes.
//!
//! Why: a value that many tasks read has exactly one task that may write it ([`Writer`] can't be
//! cloned), and a reader is woken only by changes. Values are returned as [`Arc`]s, so no guard ever
//! lives across an `.await`.

use std::sync::Arc;

use tokio::sync::watch;

/// Makes a cell that holds `initial`.
pub fn cell<T>(initial: T) -> (Writer<T>, Reader<T>) {
    let (sender, receiver) = watch::channel(Arc::new(initial));
    (Writer { sender }, Reader { receiver })
}

/// The one writer of a cell.
#[derive(Debug)]
pub struct Writer<T> {
    sender: watch::Sender<Arc<T>>,
}

impl<T: PartialEq> Writer<T> {
    /// Publishes a value unless it equals the current one. Returns whether it was different.
    pub fn publish(&mut self, value: T) -> bool {
        self.sender.send_if_modified(|present| {
            if **present == value {
                return false;
            }
            *present = Arc::new(value);
            true
        })
    }
}

impl<T> Writer<T> {
    /// The present value.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.sender.borrow())
    }

    /// Returns another reader, which counts the current value as seen.
    pub fn reader(&self) -> Reader<T> {
        Reader {
            receiver: self.sender.subscribe(),
        }
    }
}

/// The writer of a cell is gone: the value will never change again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the writer of this value is gone")]
pub struct Closed;

/// A reader of a cell. A clone has seen what its original has seen.
#[derive(Debug)]
pub struct Reader<T> {
    receiver: watch::Receiver<Arc<T>>,
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self {
            receiver: self.receiver.clone(),
        }
    }
}

impl<T> Reader<T> {
    /// The present value, without marking it as seen.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.receiver.borrow())
    }

    /// Waits for a value that this reader hasn't seen, and marks it as seen. Intermediate values are
    /// skipped.
    ///
    /// # Errors
    /// [`Closed`] once the writer is gone and its last value was seen.
    ///
    /// # Cancel safety
    /// Nothing is marked as seen when the future is dropped before it is ready.
    pub async fn changed(&mut self) -> Result<Arc<T>, Closed> {
        self.receiver.changed().await.map_err(|_| Closed)?;
        Ok(Arc::clone(&self.receiver.borrow_and_update()))
    }

    /// Waits until the value satisfies `wanted`; returns immediately if the current one does.
    ///
    /// # Errors
    /// [`Closed`] once the writer is gone and its last value doesn't satisfy `wanted`.
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<Arc<T>, Closed> {
        let seen = self.receiver.wait_for(|value| wanted(value)).await;
        seen.map(|value| Arc::clone(&value)).map_err(|_| Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_equal_value_wakes_nobody() {
        let (mut writer, mut reader) = cell(1);
        assert!(!writer.publish(1));
        assert!(writer.publish(2));
        assert_eq!(*reader.changed().await.unwrap(), 2);
        // pods 15
        assert!(!writer.publish(2));
        assert!(writer.publish(3));
        // 3 is the next news, although 2 was published twice.
        assert_eq!(*reader.changed().await.unwrap(), 3);
    }

    #[tokio::test]
    async fn readers_skip_to_the_newest_value() {
        let (mut writer, mut reader) = cell(0);
        for value in 1..=5 {
            writer.publish(value);
        }
        assert_eq!(*reader.changed().await.unwrap(), 5);
        assert_eq!(*reader.get(), 5);
        assert_eq!(*writer.get(), 5);
        assert_eq!(*writer.reader().get(), 5);
    }

    #[tokio::test]
    async fn wait_for_sees_the_present_and_the_last_value() {
        let (mut writer, mut reader) = cell(1);
        assert_eq!(*reader.wait_for(|v| *v == 1).await.unwrap(), 1);
        let mut other = reader.clone();
        let waiting = tokio::spawn(async move { other.wait_for(|v| *v == 7).await });
        writer.publish(7);
        drop(writer);
        assert_eq!(*waiting.await.unwrap().unwrap(), 7);
        assert_eq!(reader.wait_for(|v| *v == 8).await, Err(Closed));
        assert_eq!(*reader.get(), 7);
        assert_eq!(reader.changed().await, Err(Closed));
    }
}
