//! The certificates of a cluster, and the kubeconfigs that name them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// The cluster's authority. All files are below `dir`: `ca.crt`, `ca.key`, `<name>.crt`, …
pub struct Authority {
    dir: PathBuf,
    server: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority for the API server at `address`.
    pub fn new(dir: &Path, address: Ipv4Addr) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "mirrorlet-test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        std::fs::write(dir.join("ca.key"), key.serialize_pem()).unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        std::fs::write(dir.join("ca.crt"), issuer.pem()).unwrap();
        let accounts = KeyPair::generate().unwrap();
        std::fs::write(dir.join("sa.key"), accounts.serialize_pem()).unwrap();
        std::fs::write(dir.join("sa.pub"), accounts.public_key_pem()).unwrap();
        let authority = Self {
            dir: dir.to_owned(),
            server: format!("https://{address}:443"),
            issuer,
        };
        authority.serving("apiserver", address);
        authority
    }

    /// A file of this authority.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The same as an argument.
    pub fn arg(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    fn serving(&self, name: &str, address: Ipv4Addr) {
        let mut params = CertificateParams::new(vec![
            "localhost".to_owned(),
            "kubernetes".to_owned(),
            "kubernetes.default".to_owned(),
            "kubernetes.default.svc".to_owned(),
            "kubernetes.default.svc.cluster.local".to_owned(),
        ])
        .unwrap();
        for ip in [address, Ipv4Addr::LOCALHOST] {
            let name = SanType::IpAddress(IpAddr::V4(ip));
            params.subject_alt_names.push(name);
        }
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.write(name, &params);
    }

    /// A client certificate `<name>.crt` for that user of that group; a new one each time.
    pub fn client(&self, name: &str, user: &str, group: Option<&str>) {
        self.write(name, &client_params(user, group));
    }

    /// A client certificate as [`client`](Self::client) makes it, valid from and until then; chain
    /// and key in PEM.
    pub fn client_between(
        &self,
        user: &str,
        group: &str,
        from: std::time::SystemTime,
        until: std::time::SystemTime,
    ) -> String {
        let mut params = client_params(user, Some(group));
        (params.not_before, params.not_after) = (from.into(), until.into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        format!("{}{}", certificate.pem(), key.serialize_pem())
    }

    /// Key and certificate are renamed in, key first, as a careful renewal does.
    fn write(&self, name: &str, params: &CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        for (kind, text) in [("key", key.serialize_pem()), ("crt", certificate.pem())] {
            let next_door = self.file(&format!(".{name}.{kind}"));
            std::fs::write(&next_door, text).unwrap();
            std::fs::rename(next_door, self.file(&format!("{name}.{kind}"))).unwrap();
        }
    }

    /// A kubeconfig for the holder of `<name>.crt`, by file.
    pub fn certificate_kubeconfig(&self, name: &str) -> PathBuf {
        let user = serde_json::json!({
            "client-certificate": self.file(&format!("{name}.crt")),
            "client-key": self.file(&format!("{name}.key")),
        });
        self.kubeconfig(name, &user)
    }

    /// A kubeconfig for the holder of that token, by file.
    pub fn token_kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        let file = self.file(&format!("{name}.token"));
        std::fs::write(&file, token).unwrap();
        self.kubeconfig(name, &serde_json::json!({ "tokenFile": file }))
    }

    /// A kubeconfig of that user.
    pub fn kubeconfig(&self, name: &str, user: &serde_json::Value) -> PathBuf {
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": self.server,
                "certificate-authority": self.file("ca.crt"),
            }}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name}}],
            "current-context": name,
        });
        let path = self.file(&format!("{name}.kubeconfig"));
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

/// The parameters of a client's certificate.
fn client_params(user: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        let kind = DnType::OrganizationName;
        params.distinguished_name.push(kind, group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}
