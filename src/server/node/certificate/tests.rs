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

#[test]
fn a_certificate_of_our_own_is_for_all_our_names_and_renewed_before_it_ends() {
    let (served, mut task) =
        CertificateTask::begin(&ServingCertificate::SelfSigned, names()).unwrap();
    let first = leaf(&served);
    assert_eq!(first.common_name, "box-docker");
    let now = Timestamp::now();
    assert!(first.not_before < now && now < first.not_after);
    let der = served.get().cert[0].to_vec();
    let holds = |piece: &[u8]| der.windows(piece.len()).any(|window| window == piece);
    assert!(holds(b"box-docker") && holds(&[10, 0, 0, 1]) && holds(&[0xfd, 0, 0, 0]));

    let day = Duration::from_hours(24);
    task = task.looked(now);
    assert_eq!(leaf(&served), first);
    let later = now.checked_add(day * 334).unwrap();
    task = task.looked(later);
    assert_eq!(leaf(&served), first);
    let due = now.checked_add(day * 336).unwrap();
    task = task.looked(due);
    let second = leaf(&served);
    assert!(second.not_after > first.not_after);
    drop(task.looked(due));
    assert_eq!(leaf(&served), second, "renewed once");
}

struct Files {
    dir: tempfile::TempDir,
    from: ServingCertificate,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let from = ServingCertificate::Files {
            certificate: dir.path().join("tls.crt"),
            key: dir.path().join("tls.key"),
        };
        Self { dir, from }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }
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

#[test]
fn replaced_files_are_taken_up_once_they_fit_together() {
    let files = Files::new();
    let error = CertificateTask::begin(&files.from, names())
        .map(drop)
        .unwrap_err();
    assert!(
        error.to_string().contains("tls.crt: No such file"),
        "{error}"
    );
    let (certificate, key) = pair("one");
    files.write("tls.crt", &certificate);
    files.write("tls.key", &key);
    let (served, mut task) = CertificateTask::begin(&files.from, names()).unwrap();
    assert_eq!(leaf(&served).common_name, "one");
    let before = served.get();
    task = task.looked(Timestamp::now());
    assert!(Arc::ptr_eq(&before, &served.get()), "nothing has changed");

    let (certificate, key) = pair("two");
    files.write("tls.crt", &certificate);
    task = task.looked(Timestamp::now());
    assert_eq!(
        leaf(&served).common_name,
        "one",
        "a new certificate beside the old key"
    );
    assert!(task.told.is_some());
    files.write("tls.key", &key);
    task = task.looked(Timestamp::now());
    assert_eq!(leaf(&served).common_name, "two");
    assert!(task.told.is_none());

    for nonsense in [
        "",
        "no PEM",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        files.write("tls.crt", nonsense);
        task = task.looked(Timestamp::now());
        assert!(task.told.is_some(), "{nonsense:?}");
        assert_eq!(leaf(&served).common_name, "two");
    }
}
