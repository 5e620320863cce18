//! Serves the book under `/docs`.
//!
//! Its files come from the binary, through [`ApiConfig::book`](crate::ApiConfig), so that a changed page does not
//! recompile this crate.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use crate::app::Endpoint;
use crate::config::Book;
use crate::endpoints::console::takes_gzip;

const FIRST_PAGE: &str = "/docs/introduction.html";

/// Scripts, styles, pictures and the search index come from this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub fn endpoints() -> Vec<Endpoint> {
    let page = |path, id| {
        Endpoint::get(path, id, RequiredAccess::Nothing, first_page)
            .returns_text("text/html", "Redirects to the first page of the book.")
    };
    vec![
        page("/docs", "book"),
        page("/docs/", "book_folder"),
        Endpoint::get("/docs/{*path}", "book_page", RequiredAccess::Nothing, file)
            .returns_text("text/html", "A page or file of the book."),
    ]
}

async fn first_page() -> Redirect {
    Redirect::temporary(FIRST_PAGE)
}

async fn file(State(book): State<Book>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let Some((content_type, gzip)) = book(&path) else {
        return HttpProblem::not_found("the book has no such page; /docs is its first page").into_response();
    };
    if !takes_gzip(&headers) {
        let detail = "this file is stored compressed: send `Accept-Encoding: gzip`";
        return HttpProblem::of_status(StatusCode::NOT_ACCEPTABLE, detail.into()).into_response();
    }
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_ENCODING, "gzip"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ];
    (headers, gzip).into_response()
}
