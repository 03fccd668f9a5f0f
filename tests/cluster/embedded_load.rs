//! The embedded API of the real program under load: killed while it writes, watched by many, asked for
//! more than its memory holds.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use http::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::{Body, ConfigExt as _};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::common::alone::{self, Alone};
use crate::common::confined::Confined;
use crate::common::writes::{Kills, Load, watch_changes, write_and_kill};
use crate::common::{Bed, eventually, sleeper, tell};

const BINARY: &str = env!("CARGO_BIN_EXE_mirrorlet");

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_killed_has_all_that_it_acknowledged() {
    let bed = Bed::new();
    let options = Kills {
        kills: 5,
        writes: 30,
    };
    let outcome = write_and_kill(Path::new(BINARY), &bed, options).await;
    // embedded 34
    assert_eq!(outcome.faults(), 0, "{outcome:#?}");
    assert!(outcome.acknowledged >= options.kills * options.writes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_watches_see_every_change_once_and_in_order() {
    let bed = Bed::new();
    let agent = Alone::serve(Path::new(BINARY), &bed);
    let load = Load {
        watches: 100,
        changes: 100,
        pause: Duration::ZERO,
    };
    let seen = watch_changes(agent.client().await, load).await;
    // embedded 35
    assert_eq!(
        (seen.lost, seen.out_of_order, seen.doubled),
        (0, 0, 0),
        "{seen:?}"
    );
}

/// The limit of memory of the unit and of the chart, in MiB.
const LIMIT_MIB: u64 = 256;
/// Objects almost as large as may be: together they are almost all that is stored.
const LARGE: usize = 28;
const LARGE_BYTES: usize = 1_000_000;
/// Clients that attack at a time: the API takes 128 connections, and others need some.
const CLIENTS: usize = 80;
/// The size of bodies that don't end, and how many of them the API reads at a time.
const BODY_BYTES: usize = 3 << 20;
const BODIES: usize = 5;
/// Changes that are sent at a time.
const WRITERS: usize = 8;
/// Changes of each large object while they are watched.
const CHANGES: usize = 2;
/// Names under which one object is applied.
const MANAGERS: usize = 60;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str, letter: &str) -> ConfigMap {
    let data = json!({"k": letter.repeat(LARGE_BYTES)});
    serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap()
}

/// The head of the answer to a GET whose body nobody reads, as long as this is held.
async fn unread(client: &Client, path: &str) -> Option<Response<Body>> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    client.send(request).await.ok()
}

/// Fails unless some of those who attack were answered. Others may have been told to come later.
fn assert_answered(attack: &str, answers: &[Option<Response<Body>>]) {
    let codes = answers
        .iter()
        .map(|answer| answer.as_ref().map(Response::status));
    let codes: Vec<Option<StatusCode>> = codes.collect();
    assert!(codes.contains(&Some(StatusCode::OK)), "{attack}: {codes:?}");
}

/// Sends a body, the last byte of which never comes, counts it in `sent`, and holds the connection until
/// the server answers or ends it.
async fn unfinished(access: &kube::Config, sent: &AtomicUsize) -> std::io::Result<()> {
    let (host, port) = (
        access.cluster_url.host().unwrap(),
        access.cluster_url.port_u16().unwrap(),
    );
    let connection = TcpStream::connect((host, port)).await?;
    let tls = TlsConnector::from(Arc::new(access.rustls_client_config().unwrap()));
    let name = host.to_owned().try_into().unwrap();
    let mut connection = tls.connect(name, connection).await?;
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {BODY_BYTES}\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await?;
    connection.write_all(&vec![b' '; BODY_BYTES - 1]).await?;
    connection.flush().await?;
    sent.fetch_add(1, Ordering::SeqCst);
    connection.read_u8().await.map(drop)
}

/// An agent with little memory, whose API is attacked.
struct Victim {
    bed: Bed,
    agent: Confined,
    client: Client,
    bystander: String,
}

impl Victim {
    async fn new() -> Self {
        let bed = Bed::new();
        bed.write("bystander.yaml", &sleeper("bystander"));
        let args = alone::arguments(&bed, "127.0.0.1:0");
        let agent = Confined::start(BINARY, &args, bed.path(), LIMIT_MIB);
        let client = alone::client_of(bed.path()).await;
        eventually("the bystander to run", || {
            (bed.running().len() == 2).then_some(())
        })
        .await;
        let bystander = bed.running_id("bystander");
        Self {
            bed,
            agent,
            client,
            bystander,
        }
    }

    /// Fails unless the agent that was started is unharmed and answers others.
    async fn assert_serves(&mut self, attack: &str) {
        self.agent.assert_unharmed();
        let others = alone::client_of(self.bed.path()).await;
        let request = Request::get("/api/v1/namespaces/default/pods?limit=1");
        let answer = others
            .send(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        // embedded 60
        assert_eq!(answer.status(), StatusCode::OK, "{attack}");
        assert_eq!(self.bed.running_id("bystander"), self.bystander, "{attack}");
        tell(&format!("after {attack}: {}", self.agent.memory()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_of_the_embedded_api_ends_the_agent() {
    let mut victim = Victim::new().await;
    let client = victim.client.clone();
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for number in 0..LARGE {
        let map = config_map(&format!("large-{number}"), "a");
        let created = maps.create(&PostParams::default(), &map).await;
        // A machine that is busy answers that it is stored, and not loaded yet.
        let is_stored = |status: &Status| {
            [500, 504].contains(&status.code) && status.message.contains("stored")
        };
        if let Err(error) = created {
            assert!(
                matches!(&error, kube::Error::Api(status) if is_stored(status)),
                "{error}"
            );
        }
    }
    victim.assert_serves("large objects").await;

    let lists = join_all((0..CLIENTS).map(|_| unread(&client, CONFIG_MAPS))).await;
    assert_answered("lists", &lists);
    victim.assert_serves("lists that nobody reads").await;
    drop(lists);

    let tables = (0..CLIENTS).map(async |_| {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let path = format!("{CONFIG_MAPS}?includeObject=Object");
        let request = Request::get(path).header("accept", table);
        client.send(request.body(Body::empty()).unwrap()).await.ok()
    });
    let tables = join_all(tables).await;
    assert_answered("tables", &tables);
    victim.assert_serves("tables that nobody reads").await;
    drop(tables);

    let path = format!("{CONFIG_MAPS}?watch=true");
    let watches = join_all((0..CLIENTS).map(|_| unread(&client, &path))).await;
    assert_answered("watches", &watches);
    for change in 0..CHANGES {
        let letter = if change % 2 == 0 { "b" } else { "c" };
        let replacing = (0..LARGE).map(async |number| {
            let name = format!("large-{number}");
            let data = json!({"data": {"k": letter.repeat(LARGE_BYTES)}});
            let options = PatchParams::default();
            maps.patch(&name, &options, &Patch::Merge(data)).await
        });
        // Some may be told to come later.
        let replaced: Vec<_> = stream::iter(replacing)
            .buffer_unordered(WRITERS)
            .collect()
            .await;
        assert!(replaced.iter().any(Result::is_ok), "{:?}", replaced.first());
        victim.agent.assert_unharmed();
    }
    victim.assert_serves("watches that nobody reads").await;
    drop(watches);

    let access = alone::access_to(victim.bed.path()).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let mut sending = JoinSet::new();
    for _ in 0..CLIENTS {
        let (access, sent) = (access.clone(), Arc::clone(&sent));
        sending.spawn(async move { unfinished(&access, &sent).await });
    }
    eventually("as many bodies as are read at a time to be sent", || {
        victim.agent.assert_unharmed();
        (sent.load(Ordering::SeqCst) >= BODIES).then_some(())
    })
    .await;
    victim.assert_serves("bodies that don't end").await;
    let mut ended = Vec::new();
    while let Some(one) = sending.try_join_next() {
        ended.push(one);
    }
    assert!(!sending.is_empty(), "{ended:?}");
    drop(sending);

    let applying = (0..MANAGERS).map(async |number| {
        let options = PatchParams::apply(&format!("manager-{number}")).force();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shared"},
            "data": {format!("k-{number}"): "x".repeat(LARGE_BYTES / MANAGERS)},
        });
        maps.patch("shared", &options, &Patch::Apply(map)).await
    });
    let applied: Vec<_> = stream::iter(applying)
        .buffer_unordered(WRITERS)
        .collect()
        .await;
    assert!(applied.iter().any(Result::is_ok));
    victim.assert_serves("an object applied by many").await;
}
