//! A session of ThingsBoard's REST interface.

use serde_json::{Value, json};

use crate::http::HttpEndpoint;

/// The login of a user with permission to create devices, and the platform's address.
#[derive(Clone, Debug)]
pub struct PlatformLogin {
    pub endpoint: HttpEndpoint,
    pub user: String,
    pub password: String,
}

pub struct RestSession {
    endpoint: HttpEndpoint,
    token: Option<String>,
}

impl PlatformLogin {
    pub fn log_in(&self) -> Result<RestSession, String> {
        let mut session = RestSession {
            endpoint: self.endpoint.clone(),
            token: None,
        };
        let body = json!({"username": self.user, "password": self.password});
        let pair = session.post("/api/auth/login", &body)?;
        let token = pair["token"]
            .as_str()
            .ok_or("the platform's answer to the login has no token")?;
        session.token = Some(token.to_owned());
        Ok(session)
    }
}

impl RestSession {
    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.endpoint.call("GET", path, self.token.as_deref(), None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.endpoint.call("POST", path, self.token.as_deref(), Some(body))
    }
}
