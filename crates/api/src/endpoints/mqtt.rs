//! MQTT over WebSocket on the API's own port: what the console's pages speak, so that they work under whatever name and through
//! whatever proxy the console was reached.
//!
//! The upgrade is the API's: its TLS, its login, its own pages only. Then socket and TLS state are handed to the broker's workers, and
//! from CONNECT on it is a connection like those of a WebSocket listener, with a name, limits and counters as a listener has; this
//! side only looks whether the login still holds. What the login is worth ends here: who the client is says its CONNECT.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use net::Place;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::admins::Role;
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::{Login, Pass};
use crate::problem::Problem;
use crate::stall::StallGuard;
use crate::websocket::{CHECK_INTERVAL, upgrade_to_mqtt};

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/mqtt", "mqtt", mqtt)
            .tag("Messages")
            .says(
                "Speak MQTT",
                "A WebSocket with the sub-protocol `mqtt`, as a `ws` listener has it: CONNECT is authenticated and access rules hold as \
                 there. The login of the API beside it (`bearer.<token>` among the sub-protocols where no header can be set) only opens \
                 the port, and the connection ends with it; to the broker a viewer on this machine is not a client on this machine. \
                 Pages of other origins are refused.",
            )
            .fails(StatusCode::UPGRADE_REQUIRED)
            .fails(StatusCode::FORBIDDEN)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .upgrades("MQTT begins."),
    ]
}

async fn mqtt(State(app): State<App>, mut request: Request) -> Result<Response, Problem> {
    check_origin(request.headers(), &app.config().allowed_hosts)?;
    let is_admin = request
        .extensions()
        .get::<Login>()
        .is_some_and(|login| login.role == Role::Admin);
    let (response, on_upgrade, pass) = upgrade_to_mqtt(&mut request)?;
    let place = match app.net().place() {
        None => return Err(Problem::unavailable("this node has no MQTT on this port")),
        Some(Err(refusal)) => {
            let detail = format!("no more connections now: {}", refusal.name());
            return Err(Problem::unavailable(detail));
        }
        Some(Ok(place)) => place,
    };
    tokio::spawn(serve(app, on_upgrade, place, pass, is_admin));
    Ok(response)
}

/// Who has a token is no stranger's page. But where a page of somebody else got hold of one, its name is in the way. Ports are not
/// compared: many a proxy leaves them out.
fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(origin) = text(header::ORIGIN) else {
        return Ok(());
    };
    let page = origin
        .split_once("://")
        .map_or("", |(_, authority)| host_name(authority));
    let host = host_name(text(header::HOST).unwrap_or_default());
    let is_named = |name: &str| !page.is_empty() && page.eq_ignore_ascii_case(name);
    if is_named(host) || allowed.iter().any(|name| is_named(name)) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "the page is of another host than this request: a proxy in between has to pass the Host header on",
    ))
}

/// `host:port` without the port; an IPv6 address keeps its brackets.
fn host_name(authority: &str) -> &str {
    match authority.rfind(']') {
        Some(end) => &authority[..=end],
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// Until the connection is gone, or is told to go.
async fn serve(app: App, on_upgrade: OnUpgrade, place: Place, pass: Arc<Pass>, is_admin: bool) {
    // Whoever is gone before the answer is out needs nothing more.
    let Ok(upgraded) = on_upgrade.await else { return };
    let Some(upgraded) = take_apart(upgraded, is_admin) else {
        return;
    };
    let Ok(tenure) = app.net().hand_over(place, upgraded) else {
        return;
    };
    drop(app);
    while tenure.lasts() {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if !pass.is_good() {
            tenure.end();
        }
    }
}

type Plain = StallGuard<TcpStream>;

/// What is below the HTTP. `None` where the client did not wait for the answer (RFC 6455, section 4.1), or has gone.
fn take_apart(upgraded: Upgraded, is_admin: bool) -> Option<net::Upgraded> {
    let (stream, tls, read) = match upgraded.downcast::<TokioIo<Plain>>() {
        Ok(parts) => (parts.io.into_inner(), None, parts.read_buf),
        Err(upgraded) => {
            let parts = upgraded.downcast::<TokioIo<TlsStream<Plain>>>().ok()?;
            let (stream, tls) = parts.io.into_inner().into_inner();
            (stream, Some(tls), parts.read_buf)
        }
    };
    if !read.is_empty() {
        return None;
    }
    let socket = stream.into_inner().into_std().ok()?;
    let peer = socket.peer_addr().ok()?;
    Some(net::Upgraded {
        address: believed(peer, is_admin),
        socket,
        tls,
    })
}

/// Clients of this machine may do much without a password. Behind a proxy on this machine everybody seems to be one: only who could
/// give themselves every right anyway is taken for what the address says.
fn believed(peer: SocketAddr, is_admin: bool) -> SocketAddr {
    match peer.ip().to_canonical().is_loopback() && !is_admin {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), peer.port()),
        false => peer,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn pages_of_the_host_that_was_asked_for_may() {
        let allowed = ["console.example.org".to_owned()];
        for (origin, host, expected) in [
            ("http://broker.lan:18083", "broker.lan:18083", true),
            ("http://BROKER.lan:18083", "broker.lan:18083", true),
            ("https://broker.lan", "broker.lan", true),
            // A proxy on another port that says the name only.
            ("https://broker.lan:8443", "broker.lan", true),
            ("http://[fd00::7]:18083", "[fd00::7]:18083", true),
            ("https://console.example.org", "127.0.0.1:18083", true),
            ("http://[fd00::8]:18083", "[fd00::7]:18083", false),
            ("http://evil.example:18083", "broker.lan:18083", false),
            ("http://broker.lan.evil.example", "broker.lan", false),
            ("null", "null", false),
            ("http://", "", false),
        ] {
            let headers = HeaderMap::from_iter([
                (header::ORIGIN, HeaderValue::from_static(origin)),
                (header::HOST, HeaderValue::from_static(host)),
            ]);
            let is_allowed = check_origin(&headers, &allowed).is_ok();
            assert_eq!(is_allowed, expected, "{origin} to {host}");
        }
        assert!(check_origin(&HeaderMap::new(), &[]).is_ok(), "no page");
    }

    #[test]
    fn only_an_administrator_is_a_client_of_this_machine() {
        let local = SocketAddr::from(([127, 0, 0, 1], 7));
        let mapped = "[::ffff:127.0.0.1]:7".parse().unwrap();
        let other = SocketAddr::from(([192, 0, 2, 1], 7));
        for (peer, is_admin, expected) in [
            (local, true, "127.0.0.1:7"),
            (local, false, "0.0.0.0:7"),
            (mapped, false, "0.0.0.0:7"),
            (other, false, "192.0.2.1:7"),
            (other, true, "192.0.2.1:7"),
        ] {
            assert_eq!(believed(peer, is_admin).to_string(), expected, "{peer} {is_admin}");
        }
    }
}
