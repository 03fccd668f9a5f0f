use super::*;

use crate::server::node::auth::der::Leaf;

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
    let (served, mut task) = CertificateTask::begin(Origin::Own, names()).unwrap();
    let first = leaf(&served);
    assert_eq!(first.common_name, "box-docker");
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
    assert!(second.not_after > first.not_after);
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
    let error = CertificateTask::begin(files.origin(), names())
        .map(drop)
        .unwrap_err();
    assert!(
        error.to_string().contains("tls.crt: No such file"),
        "{error}"
    );
    let (certificate, key) = pair("one");
    files.write("tls.crt", &certificate);
    files.write("tls.key", &key);
    let (served, mut task) = CertificateTask::begin(files.origin(), names()).unwrap();
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
    assert!(task.told.is_some());
    files.write("tls.key", &key);
    task.look(Timestamp::now()).await;
    assert_eq!(leaf(&served).common_name, "two");
    assert!(task.told.is_none());

    for nonsense in [
        "",
        "no PEM",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        files.write("tls.crt", nonsense);
        task.look(Timestamp::now()).await;
        assert!(task.told.is_some(), "{nonsense:?}");
        assert_eq!(leaf(&served).common_name, "two");
    }
}

/// A cluster whose people are slow.
#[derive(Default)]
struct Cluster {
    requests: std::sync::Mutex<Vec<String>>,
    outcome: std::sync::Mutex<Option<Result<Outcome, SignError>>>,
}

#[async_trait::async_trait]
impl Signer for Cluster {
    async fn request(&self, request: &str) -> Result<String, SignError> {
        let mut requests = self.requests.lock().unwrap();
        requests.push(request.to_owned());
        Ok(format!("csr-{}", requests.len()))
    }

    async fn outcome(&self, _name: &str) -> Result<Outcome, SignError> {
        let outcome = self.outcome.lock().unwrap().clone();
        outcome.unwrap_or(Ok(Outcome::Pending))
    }
}

#[tokio::test]
async fn a_request_waits_for_people_and_is_made_again_when_they_refuse() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Arc::new(Cluster::default());
    let origin = Origin::Cluster {
        signer: Arc::clone(&cluster) as Arc<dyn Signer>,
        directory: directory.path().join("pki"),
    };
    let (served, mut task) = CertificateTask::begin(origin, names()).unwrap();
    assert_eq!(leaf(&served).common_name, "box-docker", "our own at first");
    let start = Timestamp::now();
    let at = |seconds: u64| start.checked_add(Duration::from_secs(seconds)).unwrap();
    let set = |outcome| *cluster.outcome.lock().unwrap() = Some(outcome);
    let made = || cluster.requests.lock().unwrap().len();
    assert_eq!(task.look(at(0)).await, Duration::from_secs(2));
    assert_eq!(task.look(at(2)).await, Duration::from_secs(2));
    assert_eq!((task.told.as_deref(), made()), (None, 1));
    task.look(at(61)).await;
    let told = task.told.clone().unwrap();
    assert!(told.contains("kubectl certificate approve csr-1"), "{told}");
    // Nobody came: another request, with another key.
    task.look(at(1000)).await;
    task.look(at(1000)).await;
    assert_eq!(made(), 2);
    let requests = cluster.requests.lock().unwrap().clone();
    assert_ne!(requests[0], requests[1]);
    let away = SignError {
        cause: "away".to_owned(),
        is_away: true,
    };
    set(Err(away));
    task.look(at(1001)).await;
    set(Ok(Outcome::Refused("Denied (ByHand): no".to_owned())));
    assert_eq!(task.look(at(1002)).await, Duration::from_mins(5));
    assert!(
        task.told
            .as_ref()
            .unwrap()
            .contains("csr-2: Denied (ByHand): no")
    );
    task.look(at(1302)).await;
    assert_eq!(made(), 3);
    // What was signed for another key is of no use.
    set(Ok(Outcome::Issued(pair("other").0)));
    task.look(at(1303)).await;
    assert_eq!(leaf(&served).common_name, "box-docker");
    assert!(!directory.path().join("pki/node-api-current.pem").exists());
}
