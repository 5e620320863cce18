//! A session of ThingsBoard's REST interface.

use serde_json::{Value, json};

use crate::http::{HttpEndpoint, HttpRequest};

/// The login of a user with permission to create devices, and the platform's address.
#[derive(Clone, Debug)]
pub struct PlatformLogin {
    pub endpoint: HttpEndpoint,
    pub user: String,
    pub password: String,
}

pub struct RestSession {
    endpoint: HttpEndpoint,
    token: String,
}

impl PlatformLogin {
    pub fn log_in(&self) -> Result<RestSession, String> {
        let mut session = RestSession {
            endpoint: self.endpoint.clone(),
            token: String::new(),
        };
        let body = json!({"username": self.user, "password": self.password});
        let pair = session.post("/api/auth/login", &body)?;
        let token = pair["token"]
            .as_str()
            .ok_or("the platform's answer to the login has no token")?;
        session.token = token.to_owned();
        Ok(session)
    }
}

impl RestSession {
    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.send_request("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.send_request("POST", path, Some(body.to_string()))
    }

    fn send_request(&self, method: &str, path: &str, body: Option<String>) -> Result<Value, String> {
        let request = HttpRequest {
            method,
            accept: "application/json",
            token: (!self.token.is_empty()).then_some(&self.token),
            body: body.as_deref(),
        };
        let place = format!("http://{}{path}", self.endpoint.authority());
        let answer = self.endpoint.send(path, &request);
        let answer = answer.map_err(|error| format!("{place}: {error}"))?;
        let answer = answer.map_err(|got| format!("{place}: got {got}"))?;
        match answer.status {
            200..300 => Ok(serde_json::from_str(&answer.body).unwrap_or(Value::Null)),
            _ => Err(format!("{method} {place}: {}: {}", answer.status_line, answer.body)),
        }
    }
}
