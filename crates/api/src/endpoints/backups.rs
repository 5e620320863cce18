//! Backups: created while the server runs, listed, downloaded as an archive, deleted, restored at the next start.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::body::Frame;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;
use tracing::{error, info};
use web::guard::RequiredAccess;
use web::problem::HttpProblem;

use crate::app::Endpoint;
use crate::backup_admin::{BackupAdmin, BackupAdminError, Backups, RestoreState};
use crate::concurrency::Downloads;
use crate::tar;

/// Pieces of an archive that are buffered for a peer, each of up to 64 KiB. With those that are being written, they
/// need less than `web::answer_memory::STREAM_BYTES`.
const PIECES_MAX: usize = 12;

#[derive(Serialize, JsonSchema)]
pub struct StartedBackup {
    pub name: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/backups";
    const NAME: &str = "Name from the list.";
    vec![
        Endpoint::get(ALL, "backups", RequiredAccess::Admin, list)
            .tag("Backup")
            .describe(
                "Backups",
                "Finished backups and the progress of the backup in progress. `tidewire restore` restores a backup into an empty data directory.",
            )
            .fails(StatusCode::CONFLICT)
            .returns::<Backups>("Backups and restores."),
        Endpoint::post(ALL, "start_backup", RequiredAccess::Admin, start)
            .tag("Backup")
            .describe(
                "Create a backup",
                "Copies the data directory while the server runs, and verifies the copy. The backup contains everything that was acknowledged before \
                 it began. Only one backup runs at a time. A backup contains users and keys: protect it like the data directory.",
            )
            .fails(StatusCode::CONFLICT)
            .answers_with::<StartedBackup>(StatusCode::ACCEPTED, "The backup has started."),
        Endpoint::get("/api/v1/backups/{name}/download", "download_backup", RequiredAccess::Admin, download)
            .tag("Backup")
            .describe("Download a backup", "A tar archive with one directory. `tidewire restore --from` reads it.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_text("application/x-tar", "The archive."),
        Endpoint::delete("/api/v1/backups/{name}", "remove_backup", RequiredAccess::Admin, remove)
            .tag("Backup")
            .describe("Delete a backup", "Cannot be undone. Deleting the backup in progress cancels it.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted or cancelled."),
        Endpoint::post("/api/v1/backups/{name}/restore", "restore_backup", RequiredAccess::Admin, restore)
            .tag("Backup")
            .describe(
                "Restore a backup",
                "The backup is verified and copied next to the data directory. Then the next start of the server restores all of it, or nothing. \
                 The previous data moves to `replaced-data` of the data directory. Users, keys and configuration changes are those of the backup; the audit log \
                 continues.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .answers_with::<StartedBackup>(StatusCode::ACCEPTED, "The server prepares the restore."),
        Endpoint::delete("/api/v1/restore", "cancel_restore", RequiredAccess::Admin, cancel_restore)
            .tag("Backup")
            .describe("Cancel a restore", "Deletes the prepared data, or stops preparing it.")
            .fails(StatusCode::CONFLICT)
            .returns_nothing("The restore is cancelled."),
        Endpoint::post("/api/v1/restore/restart", "restore_now", RequiredAccess::Admin, restore_now)
            .tag("Backup")
            .describe(
                "Restart and restore",
                "The server shuts down and starts again in the same process with the prepared data. If it cannot start with that data, \
                 it starts with the previous data.",
            )
            .fails(StatusCode::CONFLICT)
            .answers_with::<StartedBackup>(StatusCode::ACCEPTED, "The server shuts down."),
        Endpoint::delete("/api/v1/replaced-data/{name}", "remove_replaced_data", RequiredAccess::Admin, remove_replaced_data)
            .tag("Backup")
            .describe("Delete data that a restore replaced", "Cannot be undone.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted."),
    ]
}

async fn list(State(admin): State<Option<Arc<dyn BackupAdmin>>>) -> Result<Json<Backups>, HttpProblem> {
    Ok(Json(with(admin, |admin| admin.state()).await?))
}

async fn start(
    State(admin): State<Option<Arc<dyn BackupAdmin>>>,
) -> Result<(StatusCode, Json<StartedBackup>), HttpProblem> {
    let name = with(admin, |admin| admin.start()).await?;
    info!(name, "backup started");
    Ok((StatusCode::ACCEPTED, Json(StartedBackup { name })))
}

async fn download(
    State(downloads): State<Downloads>,
    State(admin): State<Option<Arc<dyn BackupAdmin>>>,
    Path(name): Path<String>,
) -> Result<Response, HttpProblem> {
    let asked = name.clone();
    let (path, bytes) = with(admin, move |admin| {
        let path = admin.path(&asked)?;
        let bytes = tar::length(&path).map_err(|error| BackupAdminError::Files {
            reason: format!("cannot read {}: {error}", path.display()),
        })?;
        Ok((path, bytes))
    })
    .await?;
    let turn = downloads.admit();
    let turn = turn.ok_or_else(|| HttpProblem::unavailable("too many backups are being downloaded"))?;
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let work = move || {
        let _turn = turn;
        send(&path, &sender);
    };
    // A thread of its own, because the peer decides how long the download takes.
    std::thread::Builder::new()
        .name("download".into())
        .spawn(work)
        .map_err(|_| HttpProblem::unavailable("cannot start a thread for the download"))?;
    let mut response = Response::new(Body::new(Archive { pieces }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    // The server generates these names; none has a character that must be quoted.
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}.tar\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

type ArchivePiece = Result<Bytes, std::io::Error>;

fn send(path: &std::path::Path, sender: &mpsc::Sender<ArchivePiece>) {
    let mut take = |piece: Vec<u8>| sender.blocking_send(Ok(piece.into())).is_ok();
    if let Err(problem) = tar::write(path, &mut take) {
        error!(error = %problem, path = %path.display(), "reading a backup failed");
        // The peer receives a truncated archive.
        let _ = sender.blocking_send(Err(problem));
    }
}

/// A body that is produced while it is sent.
struct Archive {
    pieces: mpsc::Receiver<ArchivePiece>,
}

impl axum::body::HttpBody for Archive {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let piece = self.pieces.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

async fn remove(
    State(admin): State<Option<Arc<dyn BackupAdmin>>>,
    Path(name): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    with(admin, move |admin| admin.remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restore(
    State(admin): State<Option<Arc<dyn BackupAdmin>>>,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<StartedBackup>), HttpProblem> {
    let asked = name.clone();
    with(admin, move |admin| admin.restore(&asked)).await?;
    info!(name, "preparing to restore a backup");
    Ok((StatusCode::ACCEPTED, Json(StartedBackup { name })))
}

async fn cancel_restore(State(admin): State<Option<Arc<dyn BackupAdmin>>>) -> Result<StatusCode, HttpProblem> {
    with(admin, |admin| admin.cancel_restore()).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restore_now(
    State(admin): State<Option<Arc<dyn BackupAdmin>>>,
) -> Result<(StatusCode, Json<StartedBackup>), HttpProblem> {
    let name = with(admin, |admin| {
        let restore = admin.state()?.restore;
        let prepared = restore.filter(|restore| restore.state == RestoreState::Prepared);
        let name = prepared.ok_or(BackupAdminError::NotPrepared)?.name;
        admin.restore_now().map(|()| name)
    })
    .await?;
    Ok((StatusCode::ACCEPTED, Json(StartedBackup { name })))
}

async fn remove_replaced_data(
    State(admin): State<Option<Arc<dyn BackupAdmin>>>,
    Path(name): Path<String>,
) -> Result<StatusCode, HttpProblem> {
    with(admin, move |admin| admin.remove_replaced_data(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn with<R: Send + 'static>(
    admin: Option<Arc<dyn BackupAdmin>>,
    work: impl FnOnce(&dyn BackupAdmin) -> Result<R, BackupAdminError> + Send + 'static,
) -> Result<R, HttpProblem> {
    let admin = admin.ok_or_else(|| {
        problem(&BackupAdminError::Files {
            reason: "this server runs without a data directory".into(),
        })
    })?;
    web::block(move || work(&*admin))
        .await?
        .map_err(|error| problem(&error))
}

fn problem(error: &BackupAdminError) -> HttpProblem {
    let detail = error.to_string();
    match error {
        BackupAdminError::Unknown => HttpProblem::not_found(detail),
        BackupAdminError::Restoring
        | BackupAdminError::NotPrepared
        | BackupAdminError::RestoreUnconfirmed
        | BackupAdminError::TooMuchReplacedData { .. } => {
            HttpProblem::conflict("restore", "The backup cannot be restored now", detail)
        }
        BackupAdminError::Running
        | BackupAdminError::TooMany { .. }
        | BackupAdminError::Space { .. }
        | BackupAdminError::Files { .. } => {
            HttpProblem::conflict("backup", "The backup cannot be created or read now", detail)
        }
    }
}
