//! Tokens that are verified with a key set of a web server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

/// How the web server answers.
#[derive(Clone)]
enum Answer {
    Body(String),
    Status(u16),
    /// Reads the request and never answers.
    Silence,
}

#[derive(Clone)]
struct KeyServer {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    requests: Arc<AtomicUsize>,
    tls: Option<Arc<ServerConfig>>,
}

impl KeyServer {
    /// Returns a server with a reserved address that does not listen yet.
    fn away(answer: Answer) -> KeyServer {
        KeyServer {
            address: free_port(),
            answer: Arc::new(Mutex::new(answer)),
            requests: Arc::default(),
            tls: None,
        }
    }

    fn here(answer: Answer) -> KeyServer {
        let server = KeyServer::away(answer);
        server.come();
        server
    }

    fn come(&self) {
        let listener = TcpListener::bind(self.address).expect("the port is free");
        let server = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let server = server.clone();
                thread::spawn(move || match &server.tls {
                    None => server.serve(stream),
                    Some(config) => {
                        let tls = ServerConnection::new(config.clone()).expect("a valid configuration");
                        server.serve(StreamOwned::new(tls, stream))
                    }
                });
            }
        });
    }

    /// Answers one request and closes.
    fn serve(&self, stream: impl Read + Write) -> Option<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        assert!(line.starts_with("GET /keys?v=1 "), "{line}");
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        let answer = self.answer.lock().expect("not poisoned").clone();
        let (status, body) = match answer {
            Answer::Body(body) => (200, body),
            Answer::Status(status) => (status, String::new()),
            Answer::Silence => {
                // Until the client closes.
                let _ = stream.read(&mut [0]);
                return None;
            }
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        let stream = stream.get_mut();
        stream.write_all((head + &body).as_bytes()).ok()?;
        stream.flush().ok()
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().expect("not poisoned") = answer;
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Starts a broker that asks this server. `jwt` are more options of `access.jwt`.
    fn broker(&self, jwt: &str) -> Server {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let toml = format!(
            "[access]\nproviders = [\"jwt\"]\nmax_login_failures = 0\n\
             [access.jwt]\njwks_url = \"{scheme}://localhost:{}/keys?v=1\"\n{jwt}",
            self.address.port()
        );
        Server::start(&Config::new(toml))
    }
}

fn set_of(issuers: &[&Issuer]) -> Answer {
    let keys: Vec<Json> = issuers.iter().map(|issuer| issuer.jwk()).collect();
    Answer::Body(json!({"keys": keys}).to_string())
}

/// Returns a token that was not used before.
fn fresh(issuer: &Issuer) -> String {
    issuer.token(&claims("ann", json!({"jti": unique("jti")})))
}

#[track_caller]
fn wait_for_code(server: &Server, issuer: &Issuer, expected: u8) {
    server.wait_until("the expected answer", |server| {
        code(server, "ann", &fresh(issuer)) == expected
    });
}

#[test]
fn keys_are_renewed_for_an_unknown_key_id() {
    let (old, new) = (Issuer::new("k1"), Issuer::new("k2"));
    let secret = json!({"kty": "oct", "k": base64(&[1; 32]), "kid": "k3", "alg": "HS256"});
    let keys = KeyServer::here(Answer::Body(json!({"keys": [secret, old.jwk()]}).to_string()));
    let server = keys.broker("");
    let remembered = fresh(&old);
    assert_eq!(code(&server, "ann", &remembered), 0);
    assert!(server.log().contains("a key is a shared secret"), "{}", server.log());
    keys.set(set_of(&[&new]));
    // The last request may have been a short time ago.
    wait_for_code(&server, &new, 0);
    assert_eq!(
        code(&server, "ann", &remembered),
        NOT_AUTHORIZED,
        "a key that was removed"
    );
}

#[test]
fn unknown_key_ids_cause_few_requests() {
    let (issuer, other) = (Issuer::new("k1"), Issuer::new("k9"));
    let keys = KeyServer::here(set_of(&[&issuer]));
    let server = keys.broker("");
    assert_eq!(code(&server, "ann", &fresh(&issuer)), 0);
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(code(&server, "ann", &fresh(&other)), NOT_AUTHORIZED);
    }
    let allowed = 2 + start.elapsed().as_secs() as usize / 2;
    assert!(
        keys.requests() <= allowed,
        "{} requests, expected {allowed}",
        keys.requests()
    );
    // A key id of the set needs no request, even if the signature is wrong.
    let forged = Issuer::new("k1");
    let before = keys.requests();
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(code(&server, "ann", &fresh(&forged)), NOT_AUTHORIZED);
    assert_eq!(keys.requests(), before);
}

#[test]
fn server_starts_without_the_key_server() {
    let issuer = Issuer::new("k1");
    let keys = KeyServer::away(set_of(&[&issuer]));
    let server = keys.broker("");
    assert_eq!(code(&server, "ann", &fresh(&issuer)), SERVER_UNAVAILABLE);
    server.assert_alive();
    assert!(server.log().contains("no keys for JSON Web Tokens"), "{}", server.log());
    keys.come();
    wait_for_code(&server, &issuer, 0);
}

#[test]
fn logins_wait_only_a_limited_time_for_keys() {
    let issuer = Issuer::new("k1");
    let keys = KeyServer::here(Answer::Silence);
    let server = keys.broker("timeout = \"500ms\"\n");
    assert_eq!(code(&server, "ann", &fresh(&issuer)), SERVER_UNAVAILABLE);
    // Clients without a token do not wait.
    server.assert_alive();
    keys.set(set_of(&[&issuer]));
    wait_for_code(&server, &issuer, 0);
}

#[test]
fn old_keys_are_used_while_the_server_fails() {
    let (issuer, other) = (Issuer::new("k1"), Issuer::new("k2"));
    let keys = KeyServer::here(set_of(&[&issuer]));
    let server = keys.broker("timeout = \"1s\"\n");
    assert_eq!(code(&server, "ann", &fresh(&issuer)), 0);
    let huge = format!("{{\"keys\": [], \"x\": \"{}\"}}", "y".repeat(600 * 1024));
    for answer in [
        Answer::Body("<html>not a key set</html>".to_owned()),
        Answer::Body(huge),
        Answer::Status(500),
        Answer::Silence,
    ] {
        keys.set(answer);
        let before = keys.requests();
        server.wait_until("the server asks again", |server| {
            assert_eq!(code(server, "ann", &fresh(&other)), NOT_AUTHORIZED);
            keys.requests() > before
        });
        assert_eq!(code(&server, "ann", &fresh(&issuer)), 0);
    }
    server.wait_until("the failure is logged", |server| {
        server.log().contains("using the old ones")
    });
    keys.set(set_of(&[&other]));
    wait_for_code(&server, &other, 0);
}

#[test]
fn a_set_without_usable_keys_withdraws_the_old_ones() {
    let (issuer, other) = (Issuer::new("k1"), Issuer::new("k2"));
    for empty in ["{\"keys\": []}", "{\"keys\": [{\"kty\": \"oct\", \"k\": \"AAAA\"}]}"] {
        let keys = KeyServer::here(set_of(&[&issuer]));
        let server = keys.broker("");
        let token = fresh(&issuer);
        assert_eq!(code(&server, "ann", &token), 0);
        keys.set(Answer::Body(empty.to_owned()));
        // Its unknown key id causes a request.
        wait_for_code(&server, &other, SERVER_UNAVAILABLE);
        assert_eq!(
            code(&server, "ann", &token),
            SERVER_UNAVAILABLE,
            "a verified token, {empty}"
        );
        assert!(server.log().contains("the key set has no usable key"));
        keys.set(set_of(&[&issuer]));
        wait_for_code(&server, &issuer, 0);
        assert_eq!(code(&server, "ann", &token), 0);
    }
}

#[test]
fn keys_are_requested_over_tls() {
    let issuer = Issuer::new("k1");
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has all versions")
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .expect("a valid certificate");
    let keys = KeyServer {
        tls: Some(Arc::new(config)),
        ..KeyServer::away(set_of(&[&issuer]))
    };
    keys.come();
    let untrusting = keys.broker("");
    assert_eq!(code(&untrusting, "ann", &fresh(&issuer)), SERVER_UNAVAILABLE);
    assert_eq!(keys.requests(), 0);
    let dir = std::env::temp_dir().join(unique(&format!("tidewire-jwks-{}", std::process::id())));
    std::fs::write(&dir, certified.cert.pem()).expect("the temporary directory is writable");
    let server = keys.broker(&format!("ca_file = \"{}\"\n", dir.display()));
    let accepted = code(&server, "ann", &fresh(&issuer));
    let _ = std::fs::remove_file(&dir);
    assert_eq!(accepted, 0, "{}", server.log());
}
