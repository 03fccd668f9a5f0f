//! Requests, and what is on disk of them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};

use super::*;
use mirrorlet_core::certificate::Outcome;

/// A cluster that does as it is told. It signs for the key that it finds on the disk.
struct Cluster {
    directory: PathBuf,
    /// Every request that was made, once for each time.
    made: Mutex<Vec<CertificateRequest>>,
    answer: Mutex<Answer>,
}

#[derive(Clone)]
enum Answer {
    Signs { ended: bool },
    Says(Outcome),
    Fails(SignError),
}

impl Cluster {
    fn new(directory: &Path) -> Arc<Self> {
        Arc::new(Self {
            directory: directory.to_owned(),
            made: Mutex::default(),
            answer: Mutex::new(Answer::Says(Outcome::Pending)),
        })
    }

    fn will(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn names(&self) -> Vec<String> {
        let made = self.made.lock().unwrap();
        made.iter().map(|request| request.name.clone()).collect()
    }

    fn sign(&self, ended: bool) -> String {
        let key = std::fs::read_to_string(self.directory.join("client-next.key")).unwrap();
        let key = KeyPair::from_pem(&key).unwrap();
        let mut params = CertificateParams::default();
        let now = std::time::SystemTime::now();
        let hour = Duration::from_hours(1);
        params.not_before = (now - hour * 2).into();
        params.not_after = if ended { now - hour } else { now + hour }.into();
        params.self_signed(&key).unwrap().pem()
    }
}

#[async_trait::async_trait]
impl Signer for Cluster {
    async fn request(&self, request: &CertificateRequest) -> Result<(), SignError> {
        if let Answer::Fails(error) = &*self.answer.lock().unwrap() {
            return Err(error.clone());
        }
        self.made.lock().unwrap().push(request.clone());
        Ok(())
    }

    async fn outcome(&self, name: &str) -> Result<Outcome, SignError> {
        assert_eq!(self.made.lock().unwrap().last().unwrap().name, name);
        match &*self.answer.lock().unwrap() {
            Answer::Signs { ended } => Ok(Outcome::Issued(self.sign(*ended))),
            Answer::Says(outcome) => Ok(outcome.clone()),
            Answer::Fails(error) => Err(error.clone()),
        }
    }
}

fn order() -> Order {
    Order {
        purpose: Purpose::Client,
        node: "box".to_owned(),
        hosts: Vec::new(),
        addresses: Vec::new(),
    }
}

async fn step(requested: &mut Requested, cluster: &Arc<Cluster>) -> (Progress, u64) {
    let (progress, pause) = requested.step(&**cluster, Timestamp::now()).await;
    (progress, pause.as_secs())
}

#[tokio::test]
async fn an_agent_that_ended_comes_upon_its_own_request() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("pki");
    let cluster = Cluster::new(&directory);
    let mut first = Requested::new(order(), &directory);
    let (progress, _) = step(&mut first, &cluster).await;
    assert!(matches!(progress, Progress::Waiting { .. }), "{progress:?}");
    drop(first);
    cluster.will(Answer::Signs { ended: false });
    let mut second = Requested::new(order(), &directory);
    step(&mut second, &cluster).await;
    let (progress, _) = step(&mut second, &cluster).await;
    let names = cluster.names();
    assert_eq!(names.len(), 2);
    // identity 2
    assert_eq!(names[0], names[1], "the same key, and so the same request");
    let Progress::Issued(issued) = progress else {
        panic!("{progress:?}")
    };
    // A certificate that is not stored yet is requested again.
    drop(second);
    let mut third = Requested::new(order(), &directory);
    assert!(third.kept(Timestamp::now()).is_none());
    step(&mut third, &cluster).await;
    let (progress, _) = step(&mut third, &cluster).await;
    assert!(matches!(progress, Progress::Issued(_)), "{progress:?}");
    third.keep(&issued).await.unwrap();
    let kept = third.kept(Timestamp::now()).unwrap();
    assert_eq!(kept.validity, issued.validity);
    // The next one has another key.
    step(&mut third, &cluster).await;
    assert_ne!(cluster.names().last(), names.first());
}

#[tokio::test]
async fn only_we_can_read_what_is_kept() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("pki");
    let cluster = Cluster::new(&directory);
    cluster.will(Answer::Signs { ended: false });
    let mut requested = Requested::new(order(), &directory);
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    step(&mut requested, &cluster).await;
    assert_eq!(mode(&directory), 0o700);
    let key = directory.join("client-next.key");
    // identity 2
    assert_eq!(mode(&key), 0o600);
    let (progress, _) = step(&mut requested, &cluster).await;
    let Progress::Issued(issued) = progress else {
        panic!("{progress:?}")
    };
    requested.keep(&issued).await.unwrap();
    assert_eq!(mode(requested.file()), 0o600);
    assert!(!key.exists());
}

#[tokio::test]
async fn what_was_refused_or_is_of_no_use_is_asked_for_with_another_key_and_later_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(dir.path());
    let mut requested = Requested::new(order(), dir.path());
    let elsewhere = dir.path().join("other");
    let other = Cluster::new(&elsewhere);
    step(&mut Requested::new(order(), &elsewhere), &other).await;
    let foreign = other.sign(false);
    for (turn, (answer, words)) in [
        (
            Answer::Says(Outcome::Refused("Denied (UserActionRecord): no".into())),
            "no",
        ),
        (Answer::Signs { ended: true }, "has already expired"),
        (Answer::Says(Outcome::Issued(foreign)), ""),
        (
            Answer::Says(Outcome::Issued("nonsense".into())),
            "contains no certificate",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        cluster.will(answer);
        step(&mut requested, &cluster).await;
        let (progress, pause) = step(&mut requested, &cluster).await;
        let Progress::Failed(error) = progress else {
            panic!("{turn}: {progress:?}")
        };
        assert!(error.to_string().contains(words), "{turn}: {error}");
        // identity 2
        assert_eq!(pause, 60 << turn, "{turn}");
        assert!(requested.kept(Timestamp::now()).is_none(), "{turn}");
    }
    let mut names = cluster.names();
    names.dedup();
    assert_eq!(names.len(), 4);
    // A success begins anew.
    cluster.will(Answer::Signs { ended: false });
    step(&mut requested, &cluster).await;
    let (progress, _) = step(&mut requested, &cluster).await;
    let Progress::Issued(issued) = progress else {
        panic!("{progress:?}")
    };
    requested.keep(&issued).await.unwrap();
    let refused = SignError {
        cause: "forbidden".to_owned(),
        is_away: false,
    };
    cluster.will(Answer::Fails(refused));
    let (progress, pause) = step(&mut requested, &cluster).await;
    assert!(matches!(progress, Progress::Failed(_)), "{progress:?}");
    assert_eq!(pause, 60);
}

#[tokio::test]
async fn a_request_that_is_gone_is_made_again_and_a_server_that_is_away_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(dir.path());
    let mut requested = Requested::new(order(), dir.path());
    step(&mut requested, &cluster).await;
    let away = SignError {
        cause: "no route".to_owned(),
        is_away: true,
    };
    cluster.will(Answer::Fails(away));
    let (progress, pause) = step(&mut requested, &cluster).await;
    assert!(matches!(progress, Progress::Away(_)), "{progress:?}");
    assert_eq!((pause, cluster.names().len()), (10, 1));
    cluster.will(Answer::Says(Outcome::Gone));
    step(&mut requested, &cluster).await;
    let names = cluster.names();
    // identity 2
    assert_eq!((names.len(), &names[0]), (2, &names[1]));
}

#[tokio::test]
async fn a_disk_that_refuses_asks_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pki");
    std::fs::write(&file, "not a directory").unwrap();
    let cluster = Cluster::new(&file);
    let mut requested = Requested::new(order(), &file);
    let (progress, pause) = step(&mut requested, &cluster).await;
    let Progress::Failed(error) = progress else {
        panic!("{progress:?}")
    };
    assert!(error.to_string().contains("client-next.key"), "{error}");
    // identity 2
    assert_eq!((pause, cluster.names().len()), (60, 0));
}

#[tokio::test]
async fn what_is_asked_for_names_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(dir.path());
    let serving = |hosts: &[&str], addresses: &[&str]| Order {
        purpose: Purpose::Serving,
        node: "box".to_owned(),
        hosts: hosts.iter().map(ToString::to_string).collect(),
        addresses: addresses.iter().map(|one| one.parse().unwrap()).collect(),
    };
    // All with one key.
    for order in [
        serving(&[], &[]),
        serving(&["box"], &[]),
        serving(&["bo", "x"], &[]),
        serving(&["box"], &["10.0.0.1"]),
    ] {
        step(&mut Requested::new(order, dir.path()), &cluster).await;
    }
    let names: std::collections::BTreeSet<_> = cluster.names().into_iter().collect();
    // identity 2
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn a_file_of_both_is_taken_apart() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::default().self_signed(&key).unwrap();
    let key = key.serialize_pem();
    for both in [
        format!("{}{key}", certificate.pem()),
        format!("{key}{}", certificate.pem()),
    ] {
        let (chain, rest) = split_pem(&both);
        // identity 3
        assert!(!chain.contains("PRIVATE") && !rest.contains("CERTIFICATE"));
        from_pem(chain.as_bytes(), rest.as_bytes()).unwrap();
    }
    assert_eq!(split_pem(""), (String::new(), String::new()));
}
