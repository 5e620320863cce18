//! Backups: made while the server runs, listed, taken along as an archive, deleted, restored by the next start.

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

use crate::app::{App, unix_ms};
use crate::backup_admin::{BackupAdmin, BackupError, BackupState, Restoring};
use crate::endpoint::Endpoint;
use crate::guard::Need;
use crate::problem::Problem;
use crate::tar;

/// Pieces of an archive on their way, each of up to 64 KiB.
const PIECES_MAX: usize = 16;

/// Backups and the one that is being made.
#[derive(Serialize, JsonSchema)]
pub struct Backups {
    /// Of the server's machine.
    pub directory: String,
    pub running: Option<RunningBackup>,
    /// Of the last one that did not come to its end.
    pub failure: Option<FailedBackup>,
    /// The newest first.
    pub items: Vec<Backup>,
    /// The one that is on its way to be restored.
    pub restore: Option<Restore>,
    /// What became of the last restore.
    pub restored: Option<RestoreOutcome>,
    /// Data that was in force before a restore, the newest first.
    pub set_aside: Vec<SetAside>,
}

#[derive(Serialize, JsonSchema)]
pub struct Restore {
    /// Of the backup.
    pub name: String,
    pub state: RestoreState,
    /// Since when it is in that state.
    pub since_unix_ms: u64,
    pub copied_bytes: u64,
    pub total_bytes: u64,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestoreState {
    /// It is verified and copied.
    Preparing,
    /// The next start restores it.
    Prepared,
}

#[derive(Serialize, JsonSchema)]
pub struct RestoreOutcome {
    /// Of the backup.
    pub name: String,
    pub at_unix_ms: u64,
    /// Why the data of before is in force. Without one the backup was restored.
    pub failure: Option<String>,
    /// Where the data of before is, below `set-aside` of the data directory.
    pub set_aside: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct SetAside {
    pub name: String,
    pub at_unix_ms: u64,
    pub bytes: u64,
}

#[derive(Serialize, JsonSchema)]
pub struct RunningBackup {
    pub name: String,
    pub started_at_unix_ms: u64,
    pub copied_bytes: u64,
    /// As far as can be told beforehand.
    pub total_bytes: u64,
}

#[derive(Serialize, JsonSchema)]
pub struct FailedBackup {
    pub name: String,
    pub at_unix_ms: u64,
    pub because: String,
}

/// A finished one.
#[derive(Serialize, JsonSchema)]
pub struct Backup {
    pub name: String,
    pub made_at_unix_ms: u64,
    pub bytes: u64,
    /// What is in it, in words.
    pub holds: String,
}

#[derive(Serialize, JsonSchema)]
pub struct StartedBackup {
    pub name: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/backups";
    const NAME: &str = "As in the list.";
    vec![
        Endpoint::get(ALL, "backups", list)
            .tag("Backup")
            .says(
                "Backups",
                "The finished ones, and how far the one is that is being made. `tidewire restore` fills an empty data directory from one.",
            )
            .needs(Need::Admin)
            .fails(StatusCode::CONFLICT)
            .returns::<Backups>("All of them."),
        Endpoint::post(ALL, "start_backup", start)
            .tag("Backup")
            .says(
                "Make a backup",
                "Of the data directory, while the server runs: all that was acknowledged before it began is in it. It is verified. One \
                 at a time. It holds users and keys: keep it as you keep the data directory.",
            )
            .fails(StatusCode::CONFLICT)
            .answers_with::<StartedBackup>(StatusCode::ACCEPTED, "It has begun."),
        Endpoint::get("/api/v1/backups/{name}/download", "download_backup", download)
            .tag("Backup")
            .says("Take a backup along", "As a tar archive with one directory, which `tidewire restore --from` takes.")
            .needs(Need::Admin)
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_text("application/x-tar", "The archive."),
        Endpoint::delete("/api/v1/backups/{name}", "remove_backup", remove)
            .tag("Backup")
            .says("Delete a backup", "It is gone for good. The one that is being made is cancelled.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted, or cancelled."),
        Endpoint::post("/api/v1/backups/{name}/restore", "restore_backup", restore)
            .tag("Backup")
            .says(
                "Restore a backup",
                "It is verified and copied beside the data; when that is done, the next start of the server restores it, all of it or \
                 nothing. The data of before is set aside. Users, keys and changes of the configuration are those of the backup; the \
                 audit log goes on.",
            )
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .answers_with::<StartedBackup>(StatusCode::ACCEPTED, "It is being prepared."),
        Endpoint::delete("/api/v1/restore", "cancel_restore", cancel_restore)
            .tag("Backup")
            .says("Do not restore", "What was prepared, or is being prepared, goes.")
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Nothing will be restored."),
        Endpoint::post("/api/v1/restore/restart", "restore_now", restore_now)
            .tag("Backup")
            .says(
                "Restart and restore",
                "The server ends in an orderly way and starts anew in the same process, with what is prepared. When it cannot start \
                 with that, it starts with the data of before.",
            )
            .fails(StatusCode::CONFLICT)
            .answers_with::<StartedBackup>(StatusCode::ACCEPTED, "It ends now."),
        Endpoint::delete("/api/v1/set-aside/{name}", "remove_set_aside", remove_set_aside)
            .tag("Backup")
            .says("Delete data of before a restore", "It is gone for good.")
            .path_parameter("name", NAME)
            .fails(StatusCode::CONFLICT)
            .returns_nothing("Deleted."),
    ]
}

async fn list(State(app): State<App>) -> Result<Json<Backups>, Problem> {
    Ok(Json(view(with(&app, |admin| admin.state()).await?)))
}

async fn start(State(app): State<App>) -> Result<(StatusCode, Json<StartedBackup>), Problem> {
    let name = with(&app, |admin| admin.start()).await?;
    info!(name, "a backup has begun");
    Ok((StatusCode::ACCEPTED, Json(StartedBackup { name })))
}

async fn download(State(app): State<App>, Path(name): Path<String>) -> Result<Response, Problem> {
    let asked = name.clone();
    let (path, bytes) = with(&app, move |admin| {
        let path = admin.path(&asked)?;
        let bytes = tar::length(&path).map_err(|error| BackupError::Files {
            because: format!("{} cannot be read: {error}", path.display()),
        })?;
        Ok((path, bytes))
    })
    .await?;
    let turn = app.downloads().clone().try_acquire_owned();
    let turn = turn.map_err(|_| Problem::unavailable("other backups are being downloaded"))?;
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let work = move || {
        let _turn = turn;
        send(&path, &sender);
    };
    // Not on the runtime: it lasts as long as the peer takes.
    std::thread::Builder::new()
        .name("download".into())
        .spawn(work)
        .map_err(|_| Problem::unavailable("the system has no thread for it"))?;
    let mut response = Response::new(Body::new(Archive { pieces }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    // A name of ours has no character that would have to be quoted.
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}.tar\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

type Piece = Result<Bytes, std::io::Error>;

fn send(path: &std::path::Path, sender: &mpsc::Sender<Piece>) {
    let mut take = |piece: Vec<u8>| sender.blocking_send(Ok(piece.into())).is_ok();
    if let Err(problem) = tar::write(path, &mut take) {
        error!(error = %problem, path = %path.display(), "a backup cannot be read");
        // The peer sees an archive that was cut.
        let _ = sender.blocking_send(Err(problem));
    }
}

/// A body that is made while it is sent.
struct Archive {
    pieces: mpsc::Receiver<Piece>,
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

async fn remove(State(app): State<App>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    with(&app, move |admin| admin.remove(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restore(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<StartedBackup>), Problem> {
    let asked = name.clone();
    with(&app, move |admin| admin.restore(&asked)).await?;
    info!(name, "a backup is prepared to be restored");
    Ok((StatusCode::ACCEPTED, Json(StartedBackup { name })))
}

async fn cancel_restore(State(app): State<App>) -> Result<StatusCode, Problem> {
    with(&app, |admin| admin.cancel_restore()).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restore_now(State(app): State<App>) -> Result<(StatusCode, Json<StartedBackup>), Problem> {
    let name = with(&app, |admin| {
        let prepared = match admin.state()?.restoring {
            Some(Restoring::Prepared { name, .. }) => name,
            _ => return Err(BackupError::NotPrepared),
        };
        admin.restore_now().map(|()| prepared)
    })
    .await?;
    Ok((StatusCode::ACCEPTED, Json(StartedBackup { name })))
}

async fn remove_set_aside(State(app): State<App>, Path(name): Path<String>) -> Result<StatusCode, Problem> {
    with(&app, move |admin| admin.remove_set_aside(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn with<R: Send + 'static>(
    app: &App,
    work: impl FnOnce(&dyn BackupAdmin) -> Result<R, BackupError> + Send + 'static,
) -> Result<R, Problem> {
    let admin: Option<Arc<dyn BackupAdmin>> = app.config().backups.clone();
    let admin = admin.ok_or_else(|| {
        problem(&BackupError::Files {
            because: "this server has no data directory".into(),
        })
    })?;
    app.block(move || work(&*admin)).await?.map_err(|error| problem(&error))
}

fn problem(error: &BackupError) -> Problem {
    let detail = error.to_string();
    match error {
        BackupError::Unknown => Problem::not_found(detail),
        BackupError::Restoring
        | BackupError::NotPrepared
        | BackupError::OnTrial
        | BackupError::TooMuchSetAside { .. } => Problem::conflict("restore", "That cannot be restored now", detail),
        BackupError::Running | BackupError::TooMany { .. } | BackupError::Space { .. } | BackupError::Files { .. } => {
            Problem::conflict("backup", "No backup can be made or read now", detail)
        }
    }
}

fn view(state: BackupState) -> Backups {
    Backups {
        directory: state.directory.display().to_string(),
        running: state.running.map(|running| RunningBackup {
            name: running.name,
            started_at_unix_ms: unix_ms(running.started_at),
            copied_bytes: running.copied_bytes,
            total_bytes: running.total_bytes,
        }),
        failure: state.failure.map(|failed| FailedBackup {
            name: failed.name,
            at_unix_ms: unix_ms(failed.at),
            because: failed.because,
        }),
        items: state
            .finished
            .into_iter()
            .map(|one| Backup {
                name: one.name,
                made_at_unix_ms: unix_ms(one.made_at),
                bytes: one.bytes,
                holds: one.holds,
            })
            .collect(),
        restore: state.restoring.map(view_of_restore),
        restored: state.restored.map(|one| RestoreOutcome {
            name: one.name,
            at_unix_ms: unix_ms(one.at),
            failure: one.failure,
            set_aside: one.set_aside,
        }),
        set_aside: state
            .set_aside
            .into_iter()
            .map(|one| SetAside {
                name: one.name,
                at_unix_ms: unix_ms(one.at),
                bytes: one.bytes,
            })
            .collect(),
    }
}

fn view_of_restore(restoring: Restoring) -> Restore {
    match restoring {
        Restoring::Preparing(running) => Restore {
            name: running.name,
            state: RestoreState::Preparing,
            since_unix_ms: unix_ms(running.started_at),
            copied_bytes: running.copied_bytes,
            total_bytes: running.total_bytes,
        },
        Restoring::Prepared { name, at } => Restore {
            name,
            state: RestoreState::Prepared,
            since_unix_ms: unix_ms(at),
            copied_bytes: 0,
            total_bytes: 0,
        },
    }
}
