//! People's side of the platform: a session of the REST interface.

use serde_json::{Value as Json, json};

use crate::http::request;
use crate::support::*;

/// A demonstration user of the server, logged in.
pub struct Rest {
    at: std::net::SocketAddr,
    token: String,
}

impl Rest {
    /// The tenant's administrator of a server with `platform.demo`.
    pub fn login(server: &Server) -> Rest {
        Rest::login_as(server, "tenant")
    }

    /// `sysadmin`, `tenant` or `customer` of the demonstration.
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

    /// Whatever comes back, as text.
    pub fn raw(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let authorization = format!("X-Authorization: Bearer {}\r\n", self.token);
        request(self.at, method, path, &authorization, body)
    }

    /// `multipart/form-data`; what comes back as text.
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

    /// Asks until the answer is as it should be.
    #[track_caller]
    pub fn wait_for(&self, server: &Server, path: &str, is_so: impl Fn(&Json) -> bool) -> Json {
        let mut last = Json::Null;
        server.wait_until(path, |_| {
            last = self.ok("GET", path, &Json::Null);
            is_so(&last)
        });
        last
    }

    /// A device with this token; its identifier.
    pub fn device(&self, name: &str, token: &str) -> String {
        let device = self.ok(
            "POST",
            &format!("/api/device?accessToken={token}"),
            &json!({"name": name, "type": "default"}),
        );
        device["id"]["id"].as_str().expect("an identifier").to_owned()
    }
}
