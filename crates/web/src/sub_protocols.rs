//! The sub-protocols of a WebSocket request. Web pages put the token of a login there.

use axum::http::{HeaderMap, header};

/// Returns the sub-protocols that the client offers, in order. Web pages cannot set other headers.
pub fn sub_protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}
