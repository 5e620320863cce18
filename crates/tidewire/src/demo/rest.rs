//! A session of the REST interface as the administrator of the demonstration's tenant.

use mqtt_client::HttpRequest;
use serde_json::{Value, json};

use crate::client::args::ClientTlsOptions;
use crate::client::target::ConnectTarget;
use crate::remote::send;
use connectors::Secret;

pub const USER: &str = "tenant@thingsboard.org";
pub const PASSWORD: &str = "tenant";

pub struct DemoSession {
    target: ConnectTarget,
    token: Option<Secret>,
}

impl DemoSession {
    pub fn log_in(target: ConnectTarget) -> Result<DemoSession, String> {
        let mut session = DemoSession { target, token: None };
        let pair = session.post("/api/auth/login", &json!({"username": USER, "password": PASSWORD}))?;
        let token = pair["token"].as_str().ok_or("the login gives no token")?;
        session.token = Some(Secret::new(token));
        Ok(session)
    }

    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.call("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.call("POST", path, Some(body.to_string()))
    }

    pub fn delete(&self, path: &str) -> Result<(), String> {
        self.call("DELETE", path, None).map(drop)
    }

    fn call(&self, method: &str, path: &str, body: Option<String>) -> Result<Value, String> {
        let request = HttpRequest {
            method,
            accept: "application/json",
            token: self.token.as_ref().map(Secret::expose),
            body: body.as_deref(),
        };
        // The server is on this machine: whose certificate it shows does not matter.
        let tls = ClientTlsOptions {
            is_insecure: true,
            ..ClientTlsOptions::default()
        };
        let answer = send(&self.target, &tls, path, &request).map_err(|failure| failure.to_string())?;
        match answer.status {
            200..300 => Ok(serde_json::from_slice(&answer.body).unwrap_or(Value::Null)),
            status => Err(format!(
                "{method} {path}: {status}: {}",
                String::from_utf8_lossy(&answer.body)
            )),
        }
    }
}
