//! A socket, a view that says what it is told, and clients of all manners.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::server::admin;
use crate::server::fake::FakeView;

/// Longest wait for something that must come: reached only by a defect.
const PATIENCE: Duration = Duration::from_mins(1);

struct Bed {
    view: Arc<FakeView>,
    cancel: CancellationToken,
    tasks: JoinSet<io::Result<()>>,
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = admin::bind(&dir.path().join("s")).unwrap();
        let view = Arc::new(FakeView::new());
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(admin::serve(listener, view.clone(), cancel.clone()));
        Self {
            view,
            cancel,
            tasks,
            dir,
        }
    }

    /// Sends a request and reads the head of its answer.
    async fn ask(&self, path: &str, more: &str) -> (String, UnixStream) {
        let mut stream = UnixStream::connect(self.dir.path().join("s"))
            .await
            .unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        (String::from_utf8(answer).unwrap(), stream)
    }

    async fn upgraded(&self, path: &str) -> UnixStream {
        let asking = "connection: Upgrade\r\nupgrade: mirrorlet\r\n";
        let (head, stream) = self.ask(path, asking).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        stream
    }

    /// Waits until that many sessions were dropped.
    async fn dropped(&self, count: u64) {
        let mut dropped = self.view.dropped.subscribe();
        let waiting = dropped.wait_for(|have| *have == count);
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .unwrap()
            .unwrap();
    }
}

/// All frames until the end.
async fn frames(stream: &mut UnixStream) -> Vec<Frame> {
    let mut reader = FrameReader::default();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    reader.push(&all);
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        frames.push(frame);
    }
    assert!(reader.is_empty());
    frames
}

/// What the frames of standard error hold together.
fn echoed(frames: &[Frame]) -> Vec<u8> {
    let errors = frames.iter().filter_map(|frame| match frame {
        Frame::Stderr(bytes) => Some(bytes.to_vec()),
        _ => None,
    });
    errors.flatten().collect()
}

#[tokio::test]
async fn a_command_is_carried_with_its_arguments_and_its_code() {
    let bed = Bed::new();
    let mut stream = bed
        .upgraded("/v1/pods/u/exec?command=a+b&command=%2Fc&stdout=true")
        .await;
    assert_eq!(
        frames(&mut stream).await,
        [Frame::Stdout("a b /c".into()), Frame::Exit(Some(7))]
    );
    bed.dropped(1).await;
}

#[tokio::test]
async fn input_is_carried_to_its_end_and_sizes_between() {
    let bed = Bed::new();
    let mut stream = bed
        .upgraded("/v1/pods/u/exec?command=cat&stdin=true&tty=true")
        .await;
    let size = TerminalSize {
        width: 80,
        height: 24,
    };
    let sent: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    for frame in [
        Frame::Stdin(Bytes::from(sent.clone())),
        Frame::Resize(size),
        Frame::Stdin("end".into()),
        Frame::StdinEnd,
    ] {
        stream.write_all(&frame.encode()).await.unwrap();
    }
    let frames = frames(&mut stream).await;
    assert_eq!(echoed(&frames), [&sent[..], b"end"].concat());
    assert_eq!(frames.last(), Some(&Frame::Exit(Some(7))));
    assert_eq!(*bed.view.sizes.lock().unwrap(), [size]);
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_session() {
    let bed = Bed::new();
    // One that waits, one that is not read from, and one that talks nonsense.
    let waits = bed.upgraded("/v1/pods/u/exec?command=cat&stdin=true").await;
    let mut blocked = bed.upgraded("/v1/pods/u/exec?command=cat&stdin=true").await;
    // More than all buffers hold: the echo comes back to somebody who does not read.
    let flood = Frame::Stdin(vec![0; 1 << 20].into()).encode();
    let flooding = async {
        loop {
            blocked.write_all(&flood).await.unwrap();
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(200), flooding).await;
    let mut nonsense = bed.upgraded("/v1/pods/u/exec?command=cat&stdin=true").await;
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    bed.dropped(1).await;
    drop(waits);
    bed.dropped(2).await;
    drop(blocked);
    bed.dropped(3).await;
}

#[tokio::test]
async fn the_agent_that_stops_ends_all_sessions() {
    let mut bed = Bed::new();
    let mut stream = bed.upgraded("/v1/pods/u/exec?command=cat&stdin=true").await;
    bed.cancel.cancel();
    let served = tokio::time::timeout(PATIENCE, bed.tasks.join_next()).await;
    served.unwrap().unwrap().unwrap().unwrap();
    bed.dropped(1).await;
    // What was under way came, and no exit code after it.
    assert!(!frames(&mut stream).await.contains(&Frame::Exit(Some(7))));
}

#[tokio::test]
async fn ports_are_carried_with_half_closes() {
    let bed = Bed::new();
    let mut stream = bed.upgraded("/v1/pods/u/portforward?port=7").await;
    let sent: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let (mut read, mut write) = stream.split();
    let writing = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let ((), read) = tokio::join!(writing, read.read_to_end(&mut got));
    read.unwrap();
    assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
}

#[tokio::test]
async fn what_can_be_refused_is_refused_before_the_connection_changes_hands() {
    let bed = Bed::new();
    let asking = "connection: Upgrade\r\nupgrade: mirrorlet\r\n";
    for (path, more, status) in [
        ("/v1/pods/u/exec?command=x", "", "426"),
        ("/v1/pods/u/exec", asking, "400"),
        ("/v1/pods/u/exec?command=x&tty=maybe", asking, "400"),
        ("/v1/pods/u/exec?command=x&user=root", asking, "400"),
        ("/v1/pods/gone/exec?command=x", asking, "404"),
        ("/v1/pods/gone/attach", asking, "404"),
        ("/v1/pods/u/portforward", asking, "400"),
        ("/v1/pods/u/portforward?port=0", asking, "400"),
        ("/v1/pods/u/portforward?port=65536", asking, "400"),
        ("/v1/pods/u/portforward?port=8", asking, "500"),
    ] {
        let (head, _stream) = bed.ask(path, more).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(head.starts_with(&expected), "{path}: {head}");
    }
}
