use super::*;

use crate::certificate::{CertificateRequest, Leaf, SignError};
use crate::store::cell::cell;
use mirrorlet_core::certificate::Outcome;

fn names() -> Names {
    Names {
        node: "box-docker".to_owned(),
        hostname: "box".to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
    }
}

fn leaf(served: &Served) -> Leaf {
    Leaf::read(&served.get().cert[0]).unwrap()
}

#[tokio::test]
async fn a_certificate_of_our_own_is_for_all_our_names_and_renewed_before_it_ends() {
    let metrics = Metrics::new();
    let (served, mut task) = CertificateTask::begin(Origin::Own, names(), metrics.clone()).unwrap();
    let first = leaf(&served);
    assert_eq!(first.common_name, "box-docker");
    let told = |leaf: &Leaf| {
        let ends = leaf.not_after.as_second();
        let lifetime = ends - leaf.not_before.as_second();
        let has = |name: &str, value: i64| {
            let line = format!("mirrorlet_certificate_{name}{{certificate=\"serving\"}} {value}\n");
            metrics.encode().contains(&line)
        };
        has("expiration_timestamp_seconds", ends) && has("lifetime_seconds", lifetime)
    };
    assert!(told(&first), "{}", metrics.encode());
    let now = Timestamp::now();
    assert!(first.not_before < now && now < first.not_after);
    let der = served.get().cert[0].to_vec();
    let holds = |piece: &[u8]| der.windows(piece.len()).any(|window| window == piece);
    assert!(holds(b"box-docker") && holds(&[10, 0, 0, 1]) && holds(&[0xfd, 0, 0, 0]));

    let day = Duration::from_hours(24);
    task.look(now).await;
    assert_eq!(leaf(&served), first);
    let later = now.checked_add(day * 334).unwrap();
    task.look(later).await;
    assert_eq!(leaf(&served), first);
    let due = now.checked_add(day * 336).unwrap();
    task.look(due).await;
    let second = leaf(&served);
    // node-api 9
    assert!(second.not_after > first.not_after);
    assert!(told(&second) && !told(&first));
    task.look(due).await;
    assert_eq!(leaf(&served), second, "renewed once");
}

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn origin(&self) -> Origin {
        Origin::Files {
            certificate: self.dir.path().join("tls.crt"),
            key: self.dir.path().join("tls.key"),
        }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }
}

/// A certificate of that name, ready to be served, and in PEM.
pub(in crate::server::node) fn pair_of(name: &str) -> (CertifiedKey, String) {
    let (certificate, key) = pair(name);
    let ready = from_pem(certificate.as_bytes(), key.as_bytes()).unwrap();
    (ready, certificate)
}

/// A certificate of that name and its key, in PEM.
fn pair(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

#[tokio::test]
async fn replaced_files_are_taken_up_once_they_fit_together() {
    let files = Files::new();
    let error = CertificateTask::begin(files.origin(), names(), Metrics::new())
        .map(drop)
        .unwrap_err();
    assert!(
        error.to_string().contains("tls.crt: No such file"),
        "{error}"
    );
    let (certificate, key) = pair("one");
    files.write("tls.crt", &certificate);
    files.write("tls.key", &key);
    let (served, mut task) =
        CertificateTask::begin(files.origin(), names(), Metrics::new()).unwrap();
    assert_eq!(leaf(&served).common_name, "one");
    let before = served.get();
    task.look(Timestamp::now()).await;
    assert!(Arc::ptr_eq(&before, &served.get()), "nothing has changed");

    let (certificate, key) = pair("two");
    files.write("tls.crt", &certificate);
    task.look(Timestamp::now()).await;
    assert_eq!(
        leaf(&served).common_name,
        "one",
        "a new certificate beside the old key"
    );
    // node-api 9
    assert!(task.reported.is_some());
    files.write("tls.key", &key);
    task.look(Timestamp::now()).await;
    assert_eq!(leaf(&served).common_name, "two");
    assert!(task.reported.is_none());

    for nonsense in [
        "",
        "not PEM",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        files.write("tls.crt", nonsense);
        task.look(Timestamp::now()).await;
        assert!(task.reported.is_some(), "{nonsense:?}");
        assert_eq!(leaf(&served).common_name, "two");
        // The one in use again: the next failure is told, though it may be the same.
        files.write("tls.crt", &certificate);
        task.look(Timestamp::now()).await;
        assert!(task.reported.is_none(), "{nonsense:?}");
    }
}

/// A cluster whose people are slow.
#[derive(Default)]
struct Cluster {
    requests: std::sync::Mutex<Vec<String>>,
    outcome: std::sync::Mutex<Option<Outcome>>,
}

#[async_trait::async_trait]
impl Signer for Cluster {
    async fn request(&self, request: &CertificateRequest) -> Result<(), SignError> {
        assert_eq!(request.purpose, Purpose::Serving);
        self.requests.lock().unwrap().push(request.name.clone());
        Ok(())
    }

    async fn outcome(&self, name: &str) -> Result<Outcome, SignError> {
        assert_eq!(self.requests.lock().unwrap().last().unwrap(), name);
        let outcome = self.outcome.lock().unwrap().clone();
        Ok(outcome.unwrap_or(Outcome::Pending))
    }
}

#[tokio::test]
async fn while_nobody_signs_it_is_served_with_our_own_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Arc::new(Cluster::default());
    let origin = Origin::Cluster {
        signer: Arc::clone(&cluster) as Arc<dyn Signer>,
        directory: directory.path().join("pki"),
    };
    let (served, mut task) = CertificateTask::begin(origin, names(), Metrics::new()).unwrap();
    assert_eq!(leaf(&served).common_name, "box-docker", "our own at first");
    let start = Timestamp::now();
    let at = |seconds: u64| start.checked_add(Duration::from_secs(seconds)).unwrap();
    task.look(at(0)).await;
    task.look(at(2)).await;
    assert_eq!(
        task.reported, None,
        "an approver that is a program has time"
    );
    task.look(at(61)).await;
    let name = cluster.requests.lock().unwrap()[0].clone();
    let told = task.reported.clone().unwrap();
    // node-api 9
    assert!(
        told.contains(&format!("kubectl certificate approve {name}")),
        "{told}"
    );
    *cluster.outcome.lock().unwrap() = Some(Outcome::Refused("Denied (ByHand): no".to_owned()));
    assert_eq!(task.look(at(70)).await, Duration::from_mins(1));
    let told = task.reported.clone().unwrap();
    assert!(
        told.contains(&format!("{name}: Denied (ByHand): no")),
        "{told}"
    );
    assert_eq!(leaf(&served).common_name, "box-docker");
}

/// A certificate for that, signed for that key, in PEM.
fn signed(names: &Names, key: &rcgen::KeyPair) -> String {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let user = format!("system:node:{}", names.node);
    let subject = &mut params.distinguished_name;
    subject.push(rcgen::DnType::CommonName, user);
    let hosts = [names.hostname.clone()];
    params.subject_alt_names =
        crate::certificate::alternative_names(&hosts, &names.addresses).unwrap();
    params.self_signed(key).unwrap().pem()
}

#[tokio::test]
async fn a_signed_certificate_that_is_for_something_else_is_replaced_at_once() {
    let with = |change: fn(&mut Names)| {
        let mut names = names();
        change(&mut names);
        names
    };
    for (now, fits) in [
        (names(), true),
        // An address less: what is signed is for all that is left.
        (with(|names| names.addresses.truncate(1)), true),
        // No client can ask for such a name.
        (with(|names| names.hostname = "no name".to_owned()), true),
        (with(|names| names.node = "other-docker".to_owned()), false),
        (with(|names| names.hostname = "other".to_owned()), false),
        (
            with(|names| names.addresses[0] = [10, 0, 0, 9].into()),
            false,
        ),
        (
            with(|names| names.addresses.push([10, 0, 0, 9].into())),
            false,
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let kept = signed(&names(), &key) + &key.serialize_pem();
        std::fs::write(directory.path().join("node-api-current.pem"), kept).unwrap();
        let cluster = Arc::new(Cluster::default());
        let origin = Origin::Cluster {
            signer: Arc::clone(&cluster) as Arc<dyn Signer>,
            directory: directory.path().to_owned(),
        };
        let (served, mut task) =
            CertificateTask::begin(origin, now.clone(), Metrics::new()).unwrap();
        let before = served.get();
        task.look(Timestamp::now()).await;
        let asked = || cluster.requests.lock().unwrap().len();
        // node-api 9
        assert_eq!(asked(), usize::from(!fits), "{now:?}");
        // Until another one is signed.
        assert_eq!(leaf(&served).common_name, "system:node:box-docker");
        assert!(Arc::ptr_eq(&before, &served.get()));
        if fits {
            continue;
        }
        let next = std::fs::read_to_string(directory.path().join("node-api-next.key")).unwrap();
        let next = rcgen::KeyPair::from_pem(&next).unwrap();
        // The signer leaves out the addresses: it is not asked again for that.
        let mut less = now.clone();
        less.addresses = vec![[10, 0, 0, 1].into()];
        let issued = Outcome::Issued(signed(&less, &next));
        *cluster.outcome.lock().unwrap() = Some(issued);
        for _ in 0..3 {
            task.look(Timestamp::now()).await;
        }
        assert!(!Arc::ptr_eq(&before, &served.get()), "{now:?}");
        assert_eq!(asked(), 1, "{now:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_follows_the_addresses_of_the_machine() {
    let directory = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let kept = signed(&names(), &key) + &key.serialize_pem();
    std::fs::write(directory.path().join("node-api-current.pem"), kept).unwrap();
    let cluster = Arc::new(Cluster::default());
    let by_cluster = Origin::Cluster {
        signer: Arc::clone(&cluster) as Arc<dyn Signer>,
        directory: directory.path().to_owned(),
    };
    let holds = |served: &Served, piece: &[u8]| {
        let der = served.get().cert[0].to_vec();
        der.windows(piece.len()).any(|window| window == piece)
    };
    let (mut addresses, reader) = cell(names().addresses);
    let mut running = Vec::new();
    let [signed, own] = [by_cluster, Origin::Own].map(|origin| {
        let (served, task) = CertificateTask::begin(origin, names(), Metrics::new()).unwrap();
        running.push(tokio::spawn(task.following(reader.clone()).run()));
        served
    });
    let asked = || cluster.requests.lock().unwrap().len();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(asked(), 0);
    addresses.publish(vec![[10, 0, 0, 9].into(), names().addresses[1]]);
    // The keys are written by threads that the paused clock doesn't wait for.
    while asked() == 0 || !holds(&own, &[10, 0, 0, 9]) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    // node 6m
    assert!(!holds(&own, &[10, 0, 0, 1]));
    // Until another one is signed.
    assert!(holds(&signed, &[10, 0, 0, 1]));
    running.iter().for_each(tokio::task::JoinHandle::abort);
}
