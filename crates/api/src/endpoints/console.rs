//! The console: its files, from the binary. They are built by `dev/ui build` from `ui/` and kept compressed, so that serving
//! them is a copy. Everything else that the console shows it asks the API for.
//!
//! The page may load nothing from elsewhere and run nothing inline; the one thing it may reach beside this port, on which it
//! speaks MQTT, too, is the WebSocket listeners of this node, for who wants to try one of those.

use std::fmt::Write;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use broker::Transport;

use crate::app::App;
use crate::console_files::FILES;
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::problem::Problem;

/// A file of the console.
pub struct File {
    /// As it is asked for.
    pub path: &'static str,
    pub content_type: &'static str,
    pub bytes: &'static [u8],
    pub is_gzip: bool,
}

/// Below this a name has a hash of its content in it.
const ASSETS: &str = "/assets/";

pub fn endpoints() -> Vec<Endpoint> {
    let file = |endpoint: Endpoint, content_type| endpoint.needs(Need::Nothing).returns_text(content_type, "The file.");
    vec![
        file(Endpoint::get("/", "console", page), "text/html"),
        file(Endpoint::get("/favicon.svg", "console_icon", icon), "image/svg+xml"),
        file(
            Endpoint::get("/assets/{name}", "console_asset", asset),
            "text/javascript",
        ),
    ]
}

/// Whether it is a file of the console, which has headers of its own.
pub fn is_file(path: &str) -> bool {
    find(path).is_some()
}

fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

async fn page(State(app): State<App>, headers: HeaderMap) -> Response {
    let mut response = answer("/", &headers);
    let policy = policy(&app, &headers).try_into().expect("a policy is text of ASCII");
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

async fn icon(headers: HeaderMap) -> Response {
    answer("/favicon.svg", &headers)
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    answer(&format!("{ASSETS}{name}"), &headers)
}

fn answer(path: &str, headers: &HeaderMap) -> Response {
    let Some(file) = find(path) else {
        return Problem::not_found("the console has no such file; it was updated if it had: load the page again")
            .into_response();
    };
    if file.is_gzip && !takes_gzip(headers) {
        let detail = "this file is kept compressed: send `Accept-Encoding: gzip`";
        return Problem::of_status(StatusCode::NOT_ACCEPTABLE, detail.into()).into_response();
    }
    let caching = match path.starts_with(ASSETS) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let own = [
        (header::CONTENT_TYPE, file.content_type),
        (header::CACHE_CONTROL, caching),
    ];
    let encoding: Option<(HeaderName, &str)> = file.is_gzip.then_some((header::CONTENT_ENCODING, "gzip"));
    (own, encoding.map(|encoding| [encoding]), file.bytes).into_response()
}

/// Who says nothing takes anything (RFC 9110, 12.5.3).
fn takes_gzip(headers: &HeaderMap) -> bool {
    let Some(accepted) = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok())
    else {
        return true;
    };
    accepted.split(',').any(|item| {
        let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
        let is_refused = matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        matches!(coding.trim(), "gzip" | "*") && !is_refused
    })
}

/// What the page may do. Addresses of listeners are those of the host that the page was asked for by.
fn policy(app: &App, headers: &HeaderMap) -> String {
    let mut policy =
        String::from("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'");
    if let Some(host) = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .and_then(host_name)
    {
        // The API's own port is `self`.
        let listeners = app.net().listeners().into_iter().filter(|one| !one.is_handed_over);
        for listener in listeners {
            let scheme = match listener.transport {
                Transport::WebSocket => "ws",
                Transport::SecureWebSocket => "wss",
                Transport::Tcp | Transport::Tls => continue,
            };
            write!(policy, " {scheme}://{host}:{}", listener.address.port()).expect("a String takes everything");
        }
    }
    policy.push_str("; base-uri 'none'; form-action 'self'; frame-ancestors 'none'");
    policy
}

/// The name without the port, if it is one that a policy can hold: no IPv6 address.
fn host_name(host: &str) -> Option<&str> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (!name.is_empty() && name.bytes().all(is_plain)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_refuses_gzip_does_not_get_it() {
        let with = |value: &'static str| HeaderMap::from_iter([(header::ACCEPT_ENCODING, value.parse().unwrap())]);
        assert!(takes_gzip(&HeaderMap::new()));
        for taken in ["gzip, deflate, br", "br;q=1.0, gzip;q=0.5", "*"] {
            assert!(takes_gzip(&with(taken)), "{taken}");
        }
        for refused in ["identity", "br", "gzip;q=0", ""] {
            assert!(!takes_gzip(&with(refused)), "{refused}");
        }
    }

    #[test]
    fn a_host_that_could_end_the_directive_is_left_out() {
        assert_eq!(host_name("localhost:18083"), Some("localhost"));
        assert_eq!(host_name("mqtt.example.org"), Some("mqtt.example.org"));
        for odd in ["", "[::1]:1", "a b", "x; script-src *", "x'"] {
            assert_eq!(host_name(odd), None, "{odd}");
        }
    }
}
