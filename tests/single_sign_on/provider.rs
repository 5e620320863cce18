//! An OpenID Connect provider that the tests control, so that it can be wrong in each way.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use ring::digest::{SHA256, digest};
use serde_json::{Value as Json, json};

use crate::jwt::{Issuer, base64, now};
use crate::support::*;

pub const CLIENT_ID: &str = "tidewire console";
pub const CLIENT_SECRET: &str = "a secret: of the+client%";
pub const DISCOVERY: &str = "/realm/.well-known/openid-configuration";

/// An answer in place of the right one.
#[derive(Clone)]
pub enum Answer {
    Json(Json),
    Text(u16, String),
    /// Sends the client to another address.
    Redirect(String),
    /// Reads the request and never answers.
    Silence,
}

/// A request that the provider received.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    pub authorization: String,
    pub body: String,
}

#[derive(Clone)]
pub struct Provider {
    address: SocketAddr,
    pub key: Arc<Issuer>,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Provider {
    /// A provider that does not listen yet.
    pub fn away() -> Provider {
        Provider {
            address: free_port(),
            key: Arc::new(Issuer::new("k1")),
            answers: Arc::default(),
            received: Arc::default(),
        }
    }

    pub fn here() -> Provider {
        let provider = Provider::away();
        provider.come();
        provider
    }

    pub fn come(&self) {
        let listener = TcpListener::bind(self.address).expect("the port is free");
        let provider = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let provider = provider.clone();
                thread::spawn(move || provider.serve(stream));
            }
        });
    }

    pub fn origin(&self) -> String {
        format!("http://localhost:{}", self.address.port())
    }

    pub fn issuer(&self) -> String {
        format!("{}/realm", self.origin())
    }

    pub fn discovery(&self) -> Json {
        let origin = self.origin();
        json!({
            "issuer": self.issuer(),
            "authorization_endpoint": format!("{origin}/authorize?tenant=1"),
            "token_endpoint": format!("{origin}/token/"),
            "jwks_uri": format!("{origin}/keys/"),
            "userinfo_endpoint": format!("{origin}/userinfo"),
        })
    }

    /// Starts a server with this provider. `oidc` are more options of `api.oidc`.
    pub fn server(&self, oidc: &str) -> Server {
        let issuer = self.issuer();
        Server::start(&Config::new(format!(
            "[api.oidc]\nissuer = \"{issuer}\"\nclient_id = \"{CLIENT_ID}\"\nclient_secret = \"{CLIENT_SECRET}\"\n\
             external_url = \"http://localhost:1\"\nlabel = \"Plant\"\n{oidc}\n\
             [api.oidc.roles]\nwatchers = \"viewer\"\n\"shift / leaders\" = \"operator\"\nowners = \"admin\"\n\
             acme-staff = \"ns:acme::viewer\"\nacme-leads = \"ns:acme::operator\"\nblue-staff = \"ns:blue::viewer\"\n"
        )))
    }

    pub fn set(&self, path: &str, answer: Answer) {
        self.answers
            .lock()
            .expect("not poisoned")
            .insert(path.to_owned(), answer);
    }

    pub fn reset(&self, path: &str) {
        self.answers.lock().expect("not poisoned").remove(path);
    }

    pub fn received(&self, path: &str) -> Vec<Received> {
        let received = self.received.lock().expect("not poisoned");
        received.iter().filter(|one| one.path == path).cloned().collect()
    }

    /// Returns the claims of a valid ID token with changes; null removes a claim.
    pub fn claims(&self, nonce: &str, change: &Json) -> Json {
        let mut claims = json!({
            "iss": self.issuer(), "aud": CLIENT_ID, "sub": "subject 1", "nonce": nonce, "iat": now(), "exp": now() + 60,
            "preferred_username": "ada", "roles": ["others", "watchers"],
        });
        for (name, value) in change.as_object().expect("an object") {
            claims[name] = value.clone();
        }
        let claims = claims.as_object_mut().expect("an object");
        claims.retain(|_, value| !value.is_null());
        claims.clone().into()
    }

    /// The token endpoint answers with this ID token.
    pub fn grant(&self, id_token: &str) {
        let answer = json!({"access_token": "access", "token_type": "Bearer", "id_token": id_token});
        self.set("/token/", Answer::Json(answer));
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut received = Received {
            path: path.clone(),
            authorization: String::new(),
            body: String::new(),
        };
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some((name, value)) = line.trim().split_once(": ") {
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.parse().ok()?,
                    "authorization" => received.authorization = value.to_owned(),
                    _ => {}
                }
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        received.body = String::from_utf8(body).ok()?;
        self.received.lock().expect("not poisoned").push(received);
        let set = self.answers.lock().expect("not poisoned").get(&path).cloned();
        let answer = set.unwrap_or_else(|| match path.as_str() {
            DISCOVERY => Answer::Json(self.discovery()),
            "/keys/" => Answer::Json(json!({"keys": [self.key.jwk()]})),
            _ => Answer::Text(404, String::new()),
        });
        let (status, more, body) = match answer {
            Answer::Json(json) => (200, String::new(), json.to_string()),
            Answer::Text(status, text) => (status, String::new(), text),
            Answer::Redirect(target) => (302, format!("Location: {target}\r\n"), String::new()),
            Answer::Silence => {
                // Until the client closes.
                let _ = stream.read(&mut [0]);
                return None;
            }
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status} X\r\n{more}Content-Length: {length}\r\nConnection: close\r\n\r\n");
        stream.get_mut().write_all((head + &body).as_bytes()).ok()
    }
}

/// Returns the code challenge for a code verifier.
pub fn challenge(verifier: &str) -> String {
    base64(digest(&SHA256, verifier.as_bytes()).as_ref())
}

/// Decodes the parameters of a query or a form.
pub fn parameters(text: &str) -> HashMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.expect("two digits"));
                let digits = String::from_utf8_lossy(&digits).into_owned();
                u8::from_str_radix(&digits, 16).expect("hexadecimal digits")
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).expect("text")
}
