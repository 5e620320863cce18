//! Pebble, which `dev/pebble` starts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use certificates::StatusCell;
use certificates::acme::{Acme, AcmeConfig, AcmeTiming, CertificateChanged, ChallengeKind, ExternalAccount};
use connectors::http::Fetcher;
use connectors::{Secret, TlsConfig};

use crate::ports::free_port;
use crate::support::{Directory, Running, block_on};

/// Base64url of 32 bytes.
pub const EXTERNAL_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
/// Lifetime of certificates of the shared Pebble: renewed after 4 s.
const VALIDITY_S: i64 = 6;

static SHARED: Mutex<Weak<Pebble>> = Mutex::new(Weak::new());

/// A running authority. All of its challenges arrive at the same two ports.
pub struct Pebble {
    directory: Directory,
    pub url: String,
    management: String,
    dns: String,
    pub http_port: u16,
    pub tls_port: u16,
    /// Held by the test that answers on `http_port`.
    http: Mutex<()>,
}

impl Pebble {
    /// The authority that tests share while one of them uses it. It requires an external account.
    pub fn shared() -> Arc<Pebble> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let external = format!("eab=kid:{EXTERNAL_KEY}");
            let pebble = Arc::new(Pebble::start(&[&format!("validity={VALIDITY_S}"), &external]));
            *shared = Arc::downgrade(&pebble);
            pebble
        })
    }

    pub fn start(options: &[&str]) -> Pebble {
        let mut pebble = Pebble {
            directory: Directory::new(),
            url: String::new(),
            management: String::new(),
            dns: String::new(),
            http_port: free_port().port(),
            tls_port: free_port().port(),
            http: Mutex::new(()),
        };
        let ports = [format!("http={}", pebble.http_port), format!("tls={}", pebble.tls_port)];
        let options: Vec<&str> = ports
            .iter()
            .map(String::as_str)
            .chain(options.iter().copied())
            .collect();
        let printed = pebble.call("start", &options);
        let value = |name: &str| {
            let line = printed
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.unwrap_or_else(|| panic!("{name} in {printed}")).to_owned()
        };
        (pebble.url, pebble.management, pebble.dns) = (
            value("TIDEWIRE_PEBBLE"),
            value("TIDEWIRE_PEBBLE_MANAGEMENT"),
            value("TIDEWIRE_PEBBLE_DNS"),
        );
        pebble
    }

    pub fn stop(&self) {
        self.call("kill", &[]);
    }

    /// Starts it on its ports again, without its accounts.
    pub fn start_again(&self) {
        self.call("start", &[]);
    }

    fn call(&self, verb: &str, options: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/pebble");
        let output = Command::new(script)
            .arg(verb)
            .arg(self.directory.path())
            .args(options)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "dev/pebble: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Number of accounts since its start.
    pub fn accounts(&self) -> usize {
        self.last_number("accounts in memory")
    }

    /// Number of orders since its start.
    pub fn orders(&self) -> usize {
        self.last_number("orders in the db")
    }

    /// Number of issued certificates since its start.
    pub fn certificates(&self) -> usize {
        self.log().matches("Issued certificate serial").count()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("pebble.log")).unwrap()
    }

    /// The number in the last line `There are now 2 orders in the db`.
    fn last_number(&self, what: &str) -> usize {
        let log = self.log();
        let last = log.lines().rfind(|line| line.ends_with(what));
        let number = last.and_then(|line| line.split_once("There are now ")?.1.split(' ').next());
        number.map_or(0, |number| number.parse().unwrap())
    }

    fn fetcher(&self) -> Fetcher {
        let tls = TlsConfig {
            ca_file: Some(self.ca_file()),
            ..TlsConfig::default()
        };
        Fetcher::new(tls, Duration::from_secs(20), 1 << 20)
    }

    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// The root of the issued certificates, PEM.
    pub fn root(&self) -> Vec<u8> {
        let answer = block_on(self.fetcher().get(&format!("{}/roots/0", self.management)));
        answer.unwrap().body
    }

    /// Lets a domain resolve to an address.
    pub fn resolve(&self, domain: &str, address: &str) {
        for (path, body) in [
            ("clear-a", format!("{{\"host\": \"{domain}\"}}")),
            (
                "add-a",
                format!("{{\"host\": \"{domain}\", \"addresses\": [\"{address}\"]}}"),
            ),
        ] {
            let request = hyper::Request::post(format!("{}/{path}", self.dns)).body(body.into_bytes().into());
            let answer = block_on(self.fetcher().fetch(request.unwrap())).unwrap();
            assert_eq!(answer.status, 200, "{path}");
        }
    }

    /// Reserves the port of http-01.
    pub fn http(&self) -> MutexGuard<'_, ()> {
        self.http.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A configuration with short pauses, for the shared Pebble.
    pub fn config(&self, files: &Path, domains: &[&str]) -> AcmeConfig {
        AcmeConfig {
            directory: self.url.clone(),
            domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
            contact: vec!["mailto:ops@example.org".to_owned()],
            challenge: ChallengeKind::Http01,
            bind: ([127, 0, 0, 1], self.http_port).into(),
            ca_file: Some(self.ca_file()),
            external_account: Some(ExternalAccount {
                key_id: "kid".to_owned(),
                key: Secret::new(EXTERNAL_KEY),
            }),
            files: files.to_owned(),
            timing: timing(),
        }
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn timing() -> AcmeTiming {
    let pause = Duration::from_millis(100);
    AcmeTiming {
        first_retry_rejected: pause,
        first_retry_unreachable: pause,
        longest_retry: pause,
        request_limit: Duration::from_secs(10),
    }
}

/// A running client of an authority.
pub struct Client {
    pub status: StatusCell,
    /// Contents of the certificate file after each change.
    pub issued: Arc<Mutex<Vec<String>>>,
    _running: Running,
}

impl Client {
    pub fn start(config: AcmeConfig) -> Client {
        let acme = Acme::open(config).unwrap();
        let (status, issued) = (acme.status(), Arc::<Mutex<Vec<String>>>::default());
        let list = issued.clone();
        let changed: CertificateChanged = Arc::new(move |file| {
            list.lock().unwrap().push(std::fs::read_to_string(file).unwrap());
            Ok(())
        });
        Client {
            status,
            issued,
            _running: Running::start(acme.task(changed)),
        }
    }

    /// Waits for this number of certificates.
    pub fn issued(&self, number: usize) -> Vec<String> {
        crate::support::until("certificates", || {
            let issued = self.issued.lock().unwrap();
            let error = self.status.get().last_error;
            assert_eq!(error, None, "after {} certificates", issued.len());
            (issued.len() >= number).then(|| issued.clone())
        })
    }

    /// Waits for an error that contains a text, and returns it.
    pub fn error(&self, part: &str) -> String {
        crate::support::until(part, || {
            self.status.get().last_error.filter(|error| error.contains(part))
        })
    }
}
