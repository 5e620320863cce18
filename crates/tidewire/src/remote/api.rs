//! A logged-in client of the API: sends a request and returns its JSON response or the error text of the API.

use std::fmt::{self, Write};
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::ArgMatches;
use mqtt_client::{HttpRequest, WebSocketContent};
use serde_json::{Value, json};

use super::address::{ApiAddress, ApiLogin, TOKEN_VARIABLE};
use super::http::send;
use crate::client::failure::ClientFailure;
use crate::client::transport::ClientTransport;
use crate::config::ConfigSources;
use crate::output::{EXIT_FAILURE, EXIT_USAGE, print_error};
use crate::passwd;
use connectors::Secret;

/// Logs out when it is dropped, if it has logged in.
pub struct ApiClient {
    address: ApiAddress,
    token: Secret,
    is_login_ours: bool,
}

#[derive(Debug)]
pub enum ApiError {
    /// The arguments or the configuration are invalid.
    Usage(String),
    /// The server cannot be asked.
    Unreachable(ClientFailure),
    /// The server says no, and why.
    Refused { status: u16, problem: Value },
}

impl ApiClient {
    pub fn connect(matches: &ArgMatches, sources: &ConfigSources) -> Result<ApiClient, ApiError> {
        let address = ApiAddress::find(matches, sources)?;
        let (token, is_login_ours) = match &address.login {
            ApiLogin::Token(token) => (token.clone(), false),
            ApiLogin::User { name, password } => (log_in(&address, name, password)?, true),
        };
        Ok(ApiClient {
            address,
            token,
            is_login_ours,
        })
    }

    pub fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.call("GET", path, None)
    }

    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, ApiError> {
        call(&self.address, method, path, body, Some(&self.token))
    }

    /// A WebSocket, on which the server sends text.
    pub fn listen(&self, path: &str) -> Result<ClientTransport, ApiError> {
        let ApiAddress { target, tls, .. } = &self.address;
        let open = || {
            let mut transport = ClientTransport::open(target, None, tls)?;
            let token = self.token.expose();
            transport.upgrade(target, path, WebSocketContent::Text { token })?;
            transport.clear_timeouts(target)?;
            Ok(transport)
        };
        open().map_err(ApiError::Unreachable)
    }
}

impl Drop for ApiClient {
    fn drop(&mut self) {
        if self.is_login_ours {
            // It would expire by itself.
            let _ = self.call("POST", "/api/v1/logout", None);
        }
    }
}

fn log_in(address: &ApiAddress, user: &str, password: &Secret) -> Result<Secret, ApiError> {
    let mut body = json!({"user": user, "password": password.expose()});
    let mut answer = call(address, "POST", "/api/v1/login", Some(&body), None);
    if answer.as_ref().is_err_and(ApiError::needs_code) && io::stdin().is_terminal() {
        body["code"] = passwd::ask("Code: ").map_err(ApiError::Usage)?.into();
        answer = call(address, "POST", "/api/v1/login", Some(&body), None);
    }
    let answer = answer.map_err(|error| match error.needs_code() {
        true => ApiError::Usage(format!(
            "user {user} has a second factor: run the command on a terminal, which asks for the code, or set an API key in {TOKEN_VARIABLE}"
        )),
        false => error,
    })?;
    match answer["token"].as_str() {
        Some(token) => Ok(Secret::new(token)),
        None => Err(ApiError::Unreachable(ClientFailure::Protocol(
            "the login returned no token".into(),
        ))),
    }
}

fn call(
    address: &ApiAddress,
    method: &str,
    path: &str,
    body: Option<&Value>,
    token: Option<&Secret>,
) -> Result<Value, ApiError> {
    let body = body.map(Value::to_string);
    let request = HttpRequest {
        method,
        accept: "application/json",
        token: token.map(Secret::expose),
        body: body.as_deref(),
    };
    let answer = send(&address.target, &address.tls, path, &request).map_err(ApiError::Unreachable)?;
    let value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
    match answer.status {
        200..=299 => Ok(value),
        status => Err(ApiError::Refused { status, problem: value }),
    }
}

/// A name as a part of a path.
pub fn path_part(name: &str) -> String {
    let mut part = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => part.push(char::from(byte)),
            _ => write!(part, "%{byte:02X}").expect("a String accepts all text"),
        }
    }
    part
}

impl ApiError {
    /// Whether the login needs a code of the second factor.
    fn needs_code(&self) -> bool {
        matches!(self, ApiError::Refused { problem, .. } if problem["type"] == "urn:tidewire:problem:totp-required")
    }

    pub fn report(&self) -> ExitCode {
        print_error(self);
        ExitCode::from(match self {
            ApiError::Usage(_) => EXIT_USAGE,
            _ => EXIT_FAILURE,
        })
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApiError::Usage(text) => f.write_str(text),
            ApiError::Unreachable(failure) => failure.fmt(f),
            ApiError::Refused { status, problem } => describe(f, *status, problem),
        }
    }
}

/// Problem details [RFC 9457]: every field that is wrong on a line of its own.
fn describe(f: &mut fmt::Formatter<'_>, status: u16, problem: &Value) -> fmt::Result {
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let detail = text(problem, "detail");
    if detail.is_empty() {
        return write!(f, "the API answers with status {status}");
    }
    let at = |field: String, detail: String| match field.is_empty() {
        true => detail,
        false => format!("{field}: {detail}"),
    };
    match problem["errors"].as_array() {
        Some(errors) if !errors.is_empty() => {
            write!(f, "{} ({status})", text(problem, "title"))?;
            for error in errors {
                write!(f, "\n  {}", at(text(error, "field"), text(error, "detail")))?;
            }
        }
        _ => write!(f, "{} ({status})", at(text(problem, "field"), detail))?,
    }
    for (name, words) in [("expected", "expected"), ("source", "set in")] {
        let value = text(problem, name);
        if !value.is_empty() {
            write!(f, "\n  {words}: {value}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_told_with_their_fields() {
        let shown = |problem| ApiError::Refused { status: 422, problem }.to_string();
        let one = json!({"title": "A value is not valid", "detail": "too small", "field": "qos", "expected": "0 to 2"});
        assert_eq!(shown(one), "qos: too small (422)\n  expected: 0 to 2");
        let two = json!({"title": "A value is not valid", "detail": "x", "field": "a",
            "errors": [{"field": "a", "detail": "x"}, {"field": "b", "detail": "y"}]});
        assert_eq!(shown(two), "A value is not valid (422)\n  a: x\n  b: y");
        assert_eq!(shown(Value::Null), "the API answers with status 422");
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(path_part("kafka:a/ü"), "kafka%3Aa%2F%C3%BC");
    }
}
