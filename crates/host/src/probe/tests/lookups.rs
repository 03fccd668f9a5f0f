//! Names of hosts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Lookups that last until the test lets them end.
#[derive(Default)]
struct Silent {
    asked: Mutex<Vec<String>>,
    most: AtomicUsize,
    under_way: AtomicUsize,
    over: AtomicBool,
}

impl Silent {
    fn look_up(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if !host.starts_with("silent") {
            return Ok(vec![[127, 0, 0, 1].into()]);
        }
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.asked.lock().unwrap().push(host.to_owned());
        while !self.over.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        Err(io::Error::other("nobody answers"))
    }

    /// Waits until so many lookups have begun: a thread that was started runs when the machine has time
    /// for it.
    async fn until_asked(&self, count: usize) {
        while self.asked.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Names that no server answers for hold up nothing but those who ask for them: least of all the threads
/// that blocking work shares, of which there is but one here.
#[test]
fn names_nobody_answers_for_are_asked_on_few_threads_of_their_own() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(ask_names_nobody_answers_for());
}

async fn ask_names_nobody_answers_for() {
    let silent = Arc::new(Silent::default());
    let client = {
        let silent = Arc::clone(&silent);
        Client::resolving_by(move |host| silent.look_up(host))
    };
    let [client, other] = ["one", "two"].map(|name| client.of_namespace(&name.into()));
    let short = Duration::from_millis(10);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    client.tcp_socket("there", port, LONG).await.unwrap();
    let ask_many = async |client: &Client, names: &str| {
        let mut asking = JoinSet::new();
        for n in 0..100 {
            let (client, host) = (client.clone(), format!("silent-{names}-{n}"));
            asking.spawn(async move { client.tcp_socket(&host, 1, short).await });
        }
        while let Some(asked) = asking.join_next().await {
            // tenants M4
            assert_eq!(asked.unwrap(), Err(ProbeError::Timeout(short)));
        }
    };
    ask_many(&client, "a").await;
    silent.until_asked(names::LOOKUPS_OF_NAMESPACE_MAX).await;
    // The next attempt of the same probe waits for the answer to the first one; addresses and the
    // machine's own name need no answer, and names of another namespace have theirs.
    let first = silent.asked.lock().unwrap()[0].clone();
    let again = client.tcp_socket(&first, 1, short).await;
    assert_eq!(again, Err(ProbeError::Timeout(short)));
    for host in ["127.0.0.1", "localhost", "LocalHost."] {
        let asked = client.tcp_socket(host, port, LONG).await;
        // tenants M4
        assert_eq!(asked, Ok(()), "{host}");
    }
    let localhost = client.names.resolve("localhost").await.unwrap();
    let in_order = ["127.0.0.1", "::1"].map(|address| address.parse::<IpAddr>().unwrap());
    // tenants M4
    assert_eq!(*localhost, in_order);
    let asked = other.tcp_socket("there", port, LONG).await;
    // tenants M4
    assert_eq!(asked, Ok(()), "of another namespace");
    let asked = |host: &String| {
        silent
            .asked
            .lock()
            .unwrap()
            .iter()
            .filter(|h| *h == host)
            .count()
    };
    assert_eq!(asked(&first), 1);
    let most = || silent.most.load(Ordering::SeqCst);
    assert_eq!(most(), names::LOOKUPS_OF_NAMESPACE_MAX);
    ask_many(&other, "b").await;
    silent.until_asked(names::LOOKUPS_MAX).await;
    assert_eq!(most(), names::LOOKUPS_MAX);
    let blocking = tokio::time::timeout(LONG, tokio::task::spawn_blocking(|| ()));
    // tenants M4
    assert!(
        blocking.await.is_ok_and(|done| done.is_ok()),
        "it waits for names"
    );
    silent.over.store(true, Ordering::SeqCst);
    let failed = client
        .tcp_socket("silent-again", 1, LONG)
        .await
        .unwrap_err();
    assert_eq!(
        failed.to_string(),
        "dial tcp silent-again:1: nobody answers"
    );
    client.tcp_socket("there", port, LONG).await.unwrap();
}
