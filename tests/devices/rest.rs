//! Client for the platform's REST API.

use serde_json::{Value as Json, json};

use crate::support::http::request;
use crate::support::*;

/// Session of a logged-in demo user.
pub struct Rest {
    at: std::net::SocketAddr,
    token: String,
}

impl Rest {
    /// Logs in as the tenant administrator of a server with `platform.demo`.
    pub fn login(server: &Server) -> Rest {
        Rest::login_as(server, "tenant")
    }

    /// Logs in as the demo user `sysadmin`, `tenant` or `customer`.
    pub fn login_as(server: &Server, name: &str) -> Rest {
        let mut rest = Rest {
            at: server.http(),
            token: String::new(),
        };
        let user = json!({"username": format!("{name}@thingsboard.org"), "password": name});
        let pair = rest.ok("POST", "/api/auth/login", &user);
        rest.token = pair["token"].as_str().expect("a token").to_owned();
        rest
    }

    /// Uses an existing access token, or the key of a screen.
    pub fn with_token(server: &Server, token: &str) -> Rest {
        Rest {
            at: server.http(),
            token: token.to_owned(),
        }
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn call(&self, method: &str, path: &str, body: &Json) -> (u16, Json) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let authorization = format!("X-Authorization: Bearer {}\r\n", self.token);
        let (status, text) = request(self.at, method, path, &authorization, &body);
        (status, serde_json::from_str(&text).unwrap_or(Json::Null))
    }

    /// Returns the response body as text.
    pub fn raw(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let authorization = format!("X-Authorization: Bearer {}\r\n", self.token);
        request(self.at, method, path, &authorization, body)
    }

    /// Sends a `multipart/form-data` request and returns the response body as text.
    pub fn form(&self, path: &str, boundary: &str, body: &str) -> (u16, String) {
        let headers = format!(
            "X-Authorization: Bearer {}\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n",
            self.token
        );
        request(self.at, "POST", path, &headers, body)
    }

    #[track_caller]
    pub fn ok(&self, method: &str, path: &str, body: &Json) -> Json {
        let (status, answer) = self.call(method, path, body);
        assert_eq!(status, 200, "{method} {path}: {answer}");
        answer
    }

    /// Repeats the request until the response meets the condition.
    #[track_caller]
    pub fn wait_for(&self, server: &Server, path: &str, is_so: impl Fn(&Json) -> bool) -> Json {
        let mut last = Json::Null;
        server.wait_until(path, |_| {
            last = self.ok("GET", path, &Json::Null);
            is_so(&last)
        });
        last
    }

    /// Creates a device with this access token. Returns its identifier.
    pub fn device(&self, name: &str, token: &str) -> String {
        let device = self.ok(
            "POST",
            &format!("/api/device?accessToken={token}"),
            &json!({"name": name, "type": "default"}),
        );
        device["id"]["id"].as_str().expect("an identifier").to_owned()
    }
}
