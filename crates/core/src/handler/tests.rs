//! Tests of what probes and hooks are resolved to.

use super::*;
use crate::api::core::{
    ContainerPort, EnvVar, EnvVarSource, ExecAction, GRPCAction, HTTPHeader, SleepAction,
    TCPSocketAction,
};

fn container() -> Container {
    Container {
        name: "web".into(),
        ports: Some(vec![ContainerPort {
            name: Some("http".into()),
            container_port: 8080,
            ..ContainerPort::default()
        }]),
        env: Some(vec![
            EnvVar {
                name: "WHO".into(),
                value: Some("me".into()),
                value_from: None,
            },
            EnvVar {
                name: "ELSEWHERE".into(),
                value: None,
                value_from: Some(EnvVarSource::default()),
            },
        ]),
        ..Container::default()
    }
}

fn ip() -> IpAddr {
    "10.0.0.2".parse().unwrap()
}

fn get(port: IntOrString) -> HTTPGetAction {
    HTTPGetAction {
        port,
        ..HTTPGetAction::default()
    }
}

fn request(get: HTTPGetAction, ip: Option<IpAddr>) -> Result<HttpGet, HandlerError> {
    let probe = Probe {
        http_get: Some(get),
        ..Probe::default()
    };
    match of_probe(&probe, &container(), ip)? {
        Handler::HttpGet(get) => Ok(get),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ports_are_numbers_names_and_numbers_as_text() {
    let text = |text: &str| IntOrString::String(text.into());
    for (port, expected) in [
        (IntOrString::Int(80), Ok(80)),
        (text("http"), Ok(8080)),
        (text("81"), Ok(81)),
        (IntOrString::Int(0), Err(HandlerError::InvalidPort(0))),
        (text("65536"), Err(HandlerError::InvalidPort(65536))),
        (
            text("grpc"),
            Err(HandlerError::NoSuchPort {
                port: "grpc".into(),
                container: "web".into(),
            }),
        ),
    ] {
        let resolved = request(get(port), Some(ip())).map(|get| get.port);
        // pods 56a
        assert_eq!(resolved, expected);
    }
}

#[test]
fn a_request_goes_to_the_pod_unless_a_host_is_named() {
    let port = || IntOrString::Int(80);
    assert_eq!(request(get(port()), Some(ip())).unwrap().host, "10.0.0.2");
    assert_eq!(request(get(port()), None), Err(HandlerError::NoAddress));
    let named = HTTPGetAction {
        host: Some("example.org".into()),
        ..get(port())
    };
    assert_eq!(request(named, None).unwrap().host, "example.org");
}

#[test]
fn headers_are_completed_and_may_be_taken_away() {
    let header = |name: &str, value: &str| HTTPHeader {
        name: name.into(),
        value: value.into(),
    };
    let with = |headers: Vec<HTTPHeader>| {
        let get = HTTPGetAction {
            http_headers: Some(headers),
            ..get(IntOrString::Int(80))
        };
        request(get, Some(ip())).unwrap().headers
    };
    let told = |headers: Vec<(String, String)>| {
        let lines = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}"));
        lines.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(
        told(with(vec![])),
        "User-Agent: kube-probe/1.35, Accept: */*"
    );
    assert_eq!(
        told(with(vec![header("accept", ""), header("user-agent", "me")])),
        "user-agent: me"
    );
    assert_eq!(
        told(with(vec![
            header("Accept", "text/html"),
            header("X-A", "1"),
            header("X-A", "2")
        ])),
        "Accept: text/html, X-A: 1, X-A: 2, User-Agent: kube-probe/1.35"
    );
}

#[test]
fn what_may_be_secret_is_not_told() {
    let get = HTTPGetAction {
        path: Some("/x?token=secret".into()),
        http_headers: Some(vec![HTTPHeader {
            name: "Authorization".into(),
            value: "secret".into(),
        }]),
        ..get(IntOrString::Int(80))
    };
    let request = request(get, Some("fd00::2".parse().unwrap())).unwrap();
    assert_eq!(request.to_string(), "http://[fd00::2]:80/x");
    assert!(!format!("{request:?}").contains("secret"), "{request:?}");
}

#[test]
fn commands_of_probes_know_literal_variables_and_hooks_none() {
    let exec = ExecAction {
        command: Some(vec!["echo".into(), "$(WHO)$(ELSEWHERE)$(NOBODY)".into()]),
    };
    let probe = Probe {
        exec: Some(exec.clone()),
        ..Probe::default()
    };
    let of = |word: &str| Ok(Handler::Exec(vec!["echo".into(), word.into()]));
    assert_eq!(of_probe(&probe, &container(), None), of("me$(NOBODY)"));
    let large = Probe {
        exec: Some(ExecAction {
            command: Some(vec!["$(WHO)".repeat(1 << 17)]),
        }),
        ..Probe::default()
    };
    // tenants H1
    assert_eq!(
        of_probe(&large, &container(), None)
            .unwrap_err()
            .to_string(),
        "command[0] is longer than 131072 bytes once expanded"
    );
    let hook = LifecycleHandler {
        exec: Some(exec),
        ..LifecycleHandler::default()
    };
    assert_eq!(
        of_hook(&hook, &container(), None),
        of("$(WHO)$(ELSEWHERE)$(NOBODY)")
    );
}

#[test]
fn every_other_handler() {
    let tcp = Probe {
        tcp_socket: Some(TCPSocketAction {
            host: None,
            port: IntOrString::String("http".into()),
        }),
        ..Probe::default()
    };
    assert_eq!(
        of_probe(&tcp, &container(), Some(ip())),
        Ok(Handler::TcpSocket {
            host: "10.0.0.2".into(),
            port: 8080
        })
    );
    let grpc = |mode: Option<&str>| Probe {
        grpc: Some(GRPCAction {
            mode: mode.map(str::to_owned),
            port: 9000,
            service: Some("db".into()),
        }),
        ..Probe::default()
    };
    for (mode, tls) in [
        (None, false),
        (Some("Plaintext"), false),
        (Some("TLS"), true),
    ] {
        assert_eq!(
            of_probe(&grpc(mode), &container(), Some(ip())),
            Ok(Handler::Grpc(GrpcCheck {
                host: "10.0.0.2".into(),
                port: 9000,
                service: "db".into(),
                tls,
            }))
        );
    }
    assert_eq!(
        of_probe(&Probe::default(), &container(), Some(ip())),
        Err(HandlerError::Missing)
    );
    let sleep = LifecycleHandler {
        sleep: Some(SleepAction { seconds: 5 }),
        ..LifecycleHandler::default()
    };
    assert_eq!(
        of_hook(&sleep, &container(), Some(ip())),
        Ok(Handler::Sleep(Duration::from_secs(5)))
    );
    let socket = LifecycleHandler {
        tcp_socket: tcp.tcp_socket,
        ..LifecycleHandler::default()
    };
    assert_eq!(
        of_hook(&socket, &container(), Some(ip())),
        Err(HandlerError::TcpSocketHook)
    );
}
