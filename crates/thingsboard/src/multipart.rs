//! Streams the first file of a `multipart/form-data` body to the thread that writes it. Only a few pieces are in
//! memory.

use std::future::Future;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use multer::{Constraints, Multipart, SizeLimit};
use tokio::sync::mpsc;

use super::failure::ThingsboardError;

/// Limit of pieces between the connection and the writing thread.
pub const PIECES_MAX: usize = 4;

pub enum MultipartEvent {
    File {
        name: String,
        content_type: String,
    },
    Bytes(Bytes),
    /// The file is complete. Without this piece it was truncated.
    End,
}

/// Returns the boundary of the parts from `Content-Type`.
pub fn boundary(headers: &HeaderMap) -> Result<String, ThingsboardError> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let boundary = content_type.and_then(|content_type| multer::parse_boundary(content_type).ok());
    boundary.ok_or_else(no_file)
}

/// Forwards the first file. `piece_timeout` limits the time for each piece. The receiver is dropped if the rest is not
/// needed.
pub async fn send_file(
    body: Body,
    boundary: String,
    bytes_max: usize,
    piece_timeout: Duration,
    pieces: mpsc::Sender<MultipartEvent>,
) -> Result<(), ThingsboardError> {
    let limit = SizeLimit::new().whole_stream(bytes_max as u64);
    let mut parts =
        Multipart::with_constraints(body.into_data_stream(), boundary, Constraints::new().size_limit(limit));
    loop {
        let mut part = with_timeout(piece_timeout, parts.next_field())
            .await?
            .ok_or_else(no_file)?;
        let Some(name) = part.file_name() else { continue };
        let content_type = part.content_type().map(ToString::to_string);
        let mut piece = MultipartEvent::File {
            name: name.to_owned(),
            content_type: content_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
        };
        loop {
            let is_last = matches!(piece, MultipartEvent::End);
            if pieces.send(piece).await.is_err() || is_last {
                return Ok(());
            }
            let bytes = with_timeout(piece_timeout, part.chunk()).await?;
            piece = bytes.map_or(MultipartEvent::End, MultipartEvent::Bytes);
        }
    }
}

async fn with_timeout<T>(
    piece_timeout: Duration,
    read: impl Future<Output = multer::Result<T>>,
) -> Result<T, ThingsboardError> {
    let read = tokio::time::timeout(piece_timeout, read).await;
    let read = read.map_err(|_| {
        ThingsboardError::bad_request("the body was not received in time").with_status(StatusCode::REQUEST_TIMEOUT)
    })?;
    read.map_err(|error| match error {
        multer::Error::StreamSizeExceeded { limit } => {
            ThingsboardError::bad_request(format!("the body is larger than {limit} bytes"))
                .with_status(StatusCode::PAYLOAD_TOO_LARGE)
        }
        error => ThingsboardError::bad_request(format!("the body is not valid multipart/form-data: {error}")),
    })
}

fn no_file() -> ThingsboardError {
    ThingsboardError::bad_request("Required part 'file' is not present: expected multipart/form-data with one file")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Returns name, type and bytes of the file, or the status.
    fn read(body: &[u8], bytes_max: usize) -> Result<(String, String, Vec<u8>), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (sender, mut receiver) = mpsc::channel(PIECES_MAX);
            let body = Body::from(body.to_vec());
            let sent = send_file(body, "xY".to_owned(), bytes_max, Duration::from_secs(20), sender);
            let gathered = async {
                let mut found = (String::new(), String::new(), Vec::new());
                let mut has_ended = false;
                while let Some(piece) = receiver.recv().await {
                    match piece {
                        MultipartEvent::File { name, content_type } => (found.0, found.1) = (name, content_type),
                        MultipartEvent::Bytes(bytes) => found.2.extend_from_slice(&bytes),
                        MultipartEvent::End => has_ended = true,
                    }
                }
                (found, has_ended)
            };
            let (sent, (found, has_ended)) = tokio::join!(sent, gathered);
            sent.map_err(|failure| failure.message().to_owned())?;
            assert!(has_ended);
            Ok(found)
        })
    }

    #[test]
    fn first_file_is_read_and_invalid_bodies_are_rejected() {
        let body = b"--xY\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nno file\r\n--xY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f; w.bin\"\r\ncontent-type: application/x\r\n\r\n\x00\r\n--x\r\n\xff\r\n--xY--\r\n";
        let found = read(body, 1000).unwrap();
        assert_eq!((found.0.as_str(), found.1.as_str()), ("f; w.bin", "application/x"));
        assert_eq!(found.2, b"\x00\r\n--x\r\n\xff");
        for cut in 0..body.len() - 8 {
            assert!(read(&body[..cut], 1000).is_err(), "{cut}");
        }
        for bad in [&b""[..], b"\r\n", b"--\r\n\r\n", b"{}", b"--xY\r\n\r\n--xY--"] {
            assert!(read(bad, 1000).is_err());
        }
        assert!(read(body, 100).unwrap_err().contains("larger than 100 bytes"));
    }

    #[test]
    fn boundary_is_read_from_the_header() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, text.parse().unwrap());
            boundary(&headers)
        };
        assert_eq!(of("multipart/form-data; boundary=\"a b\"").unwrap(), "a b");
        assert!(of("application/json").is_err() && of("multipart/form-data").is_err());
        assert!(boundary(&HeaderMap::new()).is_err());
    }
}
