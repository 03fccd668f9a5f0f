use proptest::prelude::*;

use super::*;

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
    out.extend(bytes);
    out
}

fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
    let api_version = match kind {
        "Job" => "batch/v1",
        "SelfSubjectReview" => "authentication.k8s.io/v1",
        "Lease" => "coordination.k8s.io/v1",
        _ => "v1",
    };
    let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
}

#[test]
fn kubectls_bodies_are_read() {
    let meta = field(
        1,
        &[field(1, b"web"), field(2, b""), field(3, b"a")].concat(),
    );
    let entry = [field(1, b"key"), field(2, b"value")].concat();
    let map = [meta.clone(), field(2, &entry)].concat();
    // embedded 13
    assert_eq!(
        to_json(&body("ConfigMap", &map)).unwrap(),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "a"}, "data": {"key": "value"}})
    );
    assert_eq!(
        to_json(&body("Secret", &map)).unwrap()["data"]["key"],
        "dmFsdWU="
    );
    // A grace period of 5 seconds, and a policy.
    let options = [vec![1 << 3, 5], field(4, b"Background")].concat();
    assert_eq!(
        to_json(&body("DeleteOptions", &options)).unwrap(),
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 5, "propagationPolicy": "Background"})
    );
    assert_eq!(
        to_json(&body("Ingress", b"")),
        Err(ProtobufError::Kind("a Ingress".to_owned()))
    );
    // A Job of one container with an empty time, empty resources and an empty status.
    let container = [
        field(1, b"c"),
        field(2, b"i"),
        field(3, b"true"),
        field(8, b""),
    ]
    .concat();
    let spec = [field(2, &container), field(3, b"Never")].concat();
    let template = [field(1, &field(8, b"")), field(2, &spec)].concat();
    let job = |more: &[u8]| {
        let spec = [&field(6, &template)[..], more].concat();
        [meta.clone(), field(2, &spec), field(3, b"")].concat()
    };
    let read = to_json(&body("Job", &job(b""))).unwrap();
    assert_eq!(
        read["spec"]["template"]["spec"],
        json!({"containers": [{"name": "c", "image": "i", "command": ["true"]}], "restartPolicy": "Never"})
    );
    // A field that isn't known is never dropped.
    assert_eq!(
        to_json(&body("Job", &job(&[0xfa, 0x06, 1, b'x']))),
        Err(ProtobufError::Malformed)
    );
    assert_eq!(to_json(b"{}"), Err(ProtobufError::Malformed));
}

#[test]
fn forms_of_go_are_those_of_json() {
    // A Service with a port by its name, an empty type and a status.
    let port = [
        vec![3 << 3, 80],
        field(4, &[vec![1 << 3, 1], field(3, b"web")].concat()),
    ]
    .concat();
    let spec = [field(1, &port), field(4, b"")].concat();
    let service = [field(2, &spec), field(3, &field(1, b""))].concat();
    // embedded 13
    assert_eq!(
        to_json(&body("Service", &service)).unwrap()["spec"],
        json!({"ports": [{"port": 80, "targetPort": "web"}]})
    );
    // Of pointers, nothing and zero are two things; a source of a volume belongs to the volume.
    let empty_dir = field(2, &field(2, b""));
    let volume = [field(1, b"v"), empty_dir].concat();
    let limits = field(
        1,
        &[field(1, b"cpu"), field(2, &field(1, b"500m"))].concat(),
    );
    let container = [field(1, b"c"), field(8, &limits), vec![0x90, 1, 0]].concat();
    let spec = [field(1, &volume), field(2, &container), vec![4 << 3, 0]].concat();
    assert_eq!(
        to_json(&body("Pod", &field(2, &spec))).unwrap()["spec"],
        json!({
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "500m"}}}],
            "terminationGracePeriodSeconds": 0,
        })
    );
    let renewed = [vec![1 << 3, 1], vec![2 << 3, 0xd0, 0x0f]].concat();
    assert_eq!(
        to_json(&body("Lease", &field(2, &field(4, &renewed)))).unwrap()["spec"],
        json!({"renewTime": "1970-01-01T00:00:01.000002Z"})
    );
}

#[test]
fn every_message_that_a_field_names_is_there() {
    let plain = [
        "string",
        "bool",
        "int",
        "bytes",
        "time",
        "microtime",
        "quantity",
        "intorstring",
        "json",
    ];
    assert!(messages().len() > 200, "{}", messages().len());
    for (message, fields) in messages() {
        for field in fields {
            let form = field
                .form
                .trim_start_matches('*')
                .rsplit(':')
                .next()
                .unwrap();
            let form = form.trim_start_matches('*');
            assert!(
                plain.contains(&form) || messages().contains_key(form),
                "{message}: {form}"
            );
        }
    }
}

#[test]
fn bodies_of_too_many_values_are_refused() {
    let long = |number: u8, bytes: &[u8]| {
        let mut out = match number {
            0..16 => vec![number << 3 | 2],
            _ => vec![number << 3 | 0x82, number >> 4],
        };
        let mut length = bytes.len();
        while length >= 0x80 {
            out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap());
        out.extend(bytes);
        out
    };
    let read = |kind: &str, raw: &[u8]| {
        let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        to_json(&[MAGIC.to_vec(), field(1, &type_meta), long(2, raw)].concat()).map(drop)
    };
    let containers = |number: usize| long(2, &field(2, &field(1, b"c")).repeat(number));
    assert_eq!(read("Pod", &containers(1000)), Ok(()));
    let many = VALUES_MAX;
    assert_eq!(
        read("Pod", &containers(many)),
        Err(ProtobufError::TooManyValues)
    );
    // Entries of a map, and the JSON of fields that managers have.
    let entries = field(2, &field(1, b"k")).repeat(many + 1);
    assert_eq!(
        read("ConfigMap", &entries),
        Err(ProtobufError::TooManyValues)
    );
    let json = |number: usize| {
        let fields = long(1, format!("[{}0]", "{},".repeat(number)).as_bytes());
        long(1, &long(17, &long(7, &fields)))
    };
    // embedded 59
    assert_eq!(
        read("ConfigMap", &json(many)),
        Err(ProtobufError::TooManyValues)
    );
}

proptest! {
    /// No bytes do harm.
    #[test]
    fn any_bytes_give_an_answer(raw in prop::collection::vec(any::<u8>(), 0..100), kind in 0..6_usize) {
        let kind = ["ConfigMap", "Secret", "DeleteOptions", "Job", "Lease", "SelfSubjectReview"][kind];
        let _ = to_json(&body(kind, &raw));
        let _ = to_json(&[MAGIC, &raw].concat());
    }
}
