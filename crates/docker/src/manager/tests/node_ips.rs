//! Containers of a node whose address changes.

use std::net::IpAddr;

use parking_lot::Mutex;

use super::*;
use crate::node_ips::NodeIps;

#[tokio::test(start_paused = true)]
async fn a_container_has_the_address_that_the_node_has_when_it_is_created() {
    let address = Arc::new(Mutex::new(IpAddr::from([192, 0, 2, 1])));
    let now = Arc::clone(&address);
    let node = HostFacts {
        node_ips_now: Some(NodeIps::read_by(move || vec![*now.lock()])),
        ..HostFacts::default()
    };
    let mut bed = Bed::warm().await;
    bed.manager = manager_of(&bed.engine, bed.root.path(), node);
    let field = json!({"fieldRef": {"fieldPath": "status.hostIP"}});
    let app = json!({
        "name": "app", "image": "app:1", "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "NODE", "valueFrom": field}],
    });
    for (uid, ip) in [("a", [192, 0, 2, 1]), ("b", [192, 0, 2, 2])] {
        *address.lock() = ip.into();
        let pod = pod(uid, &json!({"containers": [app]}));
        bed.up(&pod).await;
        let created = bed.engine.created(&app_name(&pod)).unwrap();
        let expected = format!("NODE={}", IpAddr::from(ip));
        // node 6m
        assert!(created.env.unwrap_or_default().contains(&expected), "{uid}");
    }
}
