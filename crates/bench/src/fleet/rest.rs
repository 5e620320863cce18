//! A session of ThingsBoard's REST interface.

use serde_json::{Value, json};

use crate::http::{Endpoint, Request};

/// Who may make devices, and where.
#[derive(Clone, Debug)]
pub struct Access {
    pub endpoint: Endpoint,
    pub user: String,
    pub password: String,
}

pub struct Session {
    endpoint: Endpoint,
    token: String,
}

impl Access {
    pub fn log_in(&self) -> Result<Session, String> {
        let mut session = Session {
            endpoint: self.endpoint.clone(),
            token: String::new(),
        };
        let body = json!({"username": self.user, "password": self.password});
        let pair = session.post("/api/auth/login", &body)?;
        let token = pair["token"].as_str().ok_or("the platform's login gives no token")?;
        session.token = token.to_owned();
        Ok(session)
    }
}

impl Session {
    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.ask("GET", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.ask("POST", path, Some(body.to_string()))
    }

    fn ask(&self, method: &str, path: &str, body: Option<String>) -> Result<Value, String> {
        let request = Request {
            method,
            accept: "application/json",
            token: (!self.token.is_empty()).then_some(&self.token),
            body: body.as_deref(),
        };
        let place = format!("http://{}{path}", self.endpoint.authority());
        let answer = self.endpoint.ask(path, &request);
        let answer = answer.map_err(|error| format!("{place}: {error}"))?;
        let answer = answer.map_err(|got| format!("{place}: got {got}"))?;
        match answer.status {
            200..300 => Ok(serde_json::from_str(&answer.body).unwrap_or(Value::Null)),
            _ => Err(format!("{method} {place}: {}: {}", answer.status_line, answer.body)),
        }
    }
}
