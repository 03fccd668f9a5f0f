//! A cable between an agent and its API server, which a test can pull.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Passes connections on to a server, until it is cut.
pub struct Link {
    address: SocketAddr,
    cut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// A link to `server`, `https://HOST:PORT`.
    pub async fn to(server: &str) -> Self {
        let target = server.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, is_cut) = watch::channel(false);
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (target, is_cut) = (target.clone(), is_cut.clone());
                tokio::spawn(pass_on(near, target, is_cut));
            }
        });
        Self { address, cut, task }
    }

    /// From now on nothing gets through, and nobody is told: what is connected stays so and hears
    /// nothing, and who connects hears nothing either.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// New connections get through from now on. Connections that were cut are lost.
    pub fn mend(&self) {
        self.cut.send_replace(false);
    }

    /// The kubeconfig of somebody whose way leads over this link, in a file beside it.
    pub fn kubeconfig(&self, kubeconfig: &Path) -> PathBuf {
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        let cluster = &mut config["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().unwrap();
        let host = server
            .trim_start_matches("https://")
            .split(':')
            .next()
            .unwrap()
            .to_owned();
        cluster["tls-server-name"] = host.into();
        cluster["server"] = format!("https://{}", self.address).into();
        let path = kubeconfig.with_extension("linked");
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

async fn pass_on(near: TcpStream, target: String, mut is_cut: watch::Receiver<bool>) {
    if is_cut.wait_for(|cut| !cut).await.is_err() {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::join!(
        carry(near_in, far_out, is_cut.clone()),
        carry(far_in, near_out, is_cut)
    );
}

/// Carries bytes one way until the end, or for ever once the link was cut.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut is_cut: watch::Receiver<bool>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        tokio::select! {
            biased;
            () = until_cut(&mut is_cut) => {
                // Held open and dumb: the peer's own deadlines have to find out.
                std::future::pending::<()>().await;
            }
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => {
                    let _ = to.shutdown().await;
                    return;
                }
                Ok(count) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    if to.write_all(bytes).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Returns once the link is cut; never, when it is gone.
async fn until_cut(is_cut: &mut watch::Receiver<bool>) {
    if is_cut.wait_for(|cut| *cut).await.is_err() {
        std::future::pending::<()>().await;
    }
}
