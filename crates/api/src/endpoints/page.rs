//! The landing page: live numbers, and what to type to use the broker. Three files in the binary; scripts and styles are
//! files of their own, so that the content security policy can forbid everything inline.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::endpoint::Endpoint;
use crate::guard::Need;

pub fn endpoints() -> Vec<Endpoint> {
    let file = |endpoint: Endpoint, content_type| endpoint.needs(Need::Nothing).returns_text(content_type, "The file.");
    vec![
        file(Endpoint::get("/", "page", page), "text/html"),
        file(Endpoint::get("/page.js", "page_script", script), "text/javascript"),
        file(Endpoint::get("/page.css", "page_style", style), "text/css"),
        file(Endpoint::get("/favicon.svg", "page_icon", icon), "image/svg+xml"),
    ]
}

fn text(content_type: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

async fn page() -> Response {
    text("text/html; charset=utf-8", include_str!("../page/page.html"))
}

async fn script() -> Response {
    text("text/javascript; charset=utf-8", include_str!("../page/page.js"))
}

async fn style() -> Response {
    text("text/css; charset=utf-8", include_str!("../page/page.css"))
}

async fn icon() -> Response {
    text("image/svg+xml", include_str!("../page/favicon.svg"))
}
