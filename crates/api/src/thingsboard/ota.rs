//! Firmware and software of devices: packages, their bytes, and telling devices which one is theirs.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use devices::Untold;
use platform::Page;
use platform::entities::{OTA_PART_BYTES, OtaUpload};
use platform::ids::{OtaPackageId, Uuid};
use platform::model::{Device, DeviceProfile, Entity, OtaPackage, OtaPackageType};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::call::{Call, Verb, missing};
use super::export::{permit, streamed};
use super::failure::Failure;
use super::lists::list_query;
use super::multipart::{PIECES_MAX, Piece, boundary, send_file};
use super::operation::{self, FromParameter, FromPath, NoQuery, Outcome, delete, get, path_parameters, post, query_of};
use super::world::full;
use crate::app::App;
use crate::endpoint::Endpoint;
use crate::guard::{Need, Who};

/// Of a request with the bytes of a package: they, and what is around them.
const UPLOAD_BYTES_MAX: usize = platform::entities::OTA_BYTES_MAX + (64 << 10);
const UPLOAD: &str = "/api/otaPackage/{otaPackageId}";

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/otaPackages", "list_ota_packages", Who::TENANT, list)
            .says("List packages", "Firmware and software, without their bytes.")
            .returns_json("A page of packages."),
        get(
            "/api/otaPackages/{deviceProfileId}/{type}",
            "list_ota_packages_of_profile",
            Who::TENANT,
            list_of_profile,
        )
        .says(
            "List packages for a device profile",
            "Of one type, that devices of the profile can have: with bytes or a URL.",
        )
        .returns_json("A page of packages."),
        get(
            "/api/devices/count/{type}/{deviceProfileId}",
            "count_devices_without_package",
            Who::TENANT_ADMIN,
            count_devices,
        )
        .says(
            "Count devices that follow a profile's package",
            "Those of the profile that have none of this type of their own.",
        )
        .returns_json("The number."),
        get("/api/otaPackage/info/{otaPackageId}", "get_ota_package_info", Who::TENANT, read_info)
            .says("Read a package", "Without its bytes; each of the tenant, also for users of customers.")
            .returns_json("The package."),
        get("/api/otaPackage/{otaPackageId}", "get_ota_package", Who::TENANT_ADMIN, read)
            .says("Read a package", "Without its bytes, which `download` has.")
            .returns_json("The package."),
        get("/api/otaPackage/{otaPackageId}/download", "download_ota_package", Who::TENANT_ADMIN, download)
            .says("Download a package", "Its bytes as they were uploaded.")
            .returns_text("application/octet-stream", "The bytes."),
        post("/api/otaPackage", "save_ota_package", Who::TENANT_ADMIN, save)
            .says(
                "Create a package",
                "Title, version and type; with `url` devices fetch it from there, else its bytes follow. Of one that is there only `additionalInfo` can be changed.",
            )
            .returns_json("The package."),
        path_parameters(
            Endpoint::of(Method::POST, UPLOAD, "upload_ota_package", upload).needs(Need::Person(Who::TENANT_ADMIN)),
            UPLOAD,
        )
        .query::<UploadQuery>()
        .says(
            "Upload the bytes of a package",
            "As `multipart/form-data` with one file, 256 MiB at most. A `checksum` that is given must be that of the bytes; else it is computed.",
        )
        .takes_limited_json(UPLOAD_BYTES_MAX)
        .fails(StatusCode::TOO_MANY_REQUESTS)
        .returns_json("The package."),
        delete("/api/otaPackage/{otaPackageId}", "delete_ota_package", Who::TENANT_ADMIN, remove)
            .says("Delete a package", "Not one that devices or device profiles have.")
            .returns_empty("Deleted."),
    ];
    all.into_iter()
        .map(|endpoint| endpoint.tag("Firmware and software"))
        .collect()
}

list_query!(OtaQuery {});

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct UploadQuery {
    /// Hexadecimal.
    checksum: Option<String>,
    /// MD5, SHA256, SHA384, SHA512 or CRC32.
    checksum_algorithm: String,
}

fn list(call: &Call, (): (), query: OtaQuery, (): ()) -> Outcome<Page<OtaPackage>> {
    page(call, query, Selection::default())
}

fn list_of_profile(
    call: &Call,
    (profile, kind): (Uuid, OtaPackageType),
    query: OtaQuery,
    (): (),
) -> Outcome<Page<OtaPackage>> {
    call.entity::<DeviceProfile>(profile, Verb::Read)?;
    let selection = Selection {
        parent: Some(profile),
        subtype: Some(kind.name().to_owned()),
        ..Selection::default()
    };
    let mut found = page(call, query, selection)?;
    found.0.data.retain(|package| package.has_data || package.has_url());
    Ok(found)
}

fn count_devices(call: &Call, (kind, profile): (OtaPackageType, Uuid), _: NoQuery, (): ()) -> Outcome<usize> {
    call.entity::<DeviceProfile>(profile, Verb::Read)?;
    let mut count = 0;
    call.entities().repository().for_each(Device::KIND, &mut |record| {
        let is_of_profile = record.row.parent == profile;
        count += usize::from(
            is_of_profile
                && record.read::<Device>().is_ok_and(|device| match kind {
                    OtaPackageType::Firmware => device.firmware_id.is_none(),
                    OtaPackageType::Software => device.software_id.is_none(),
                }),
        );
    })?;
    Ok(Json(count))
}

fn page(call: &Call, query: OtaQuery, selection: Selection) -> Outcome<Page<OtaPackage>> {
    let selection = Selection {
        tenant: Some(call.tenant().0),
        ..selection
    };
    Ok(Json(call.entities().page(&selection, &query.link()?)?))
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<OtaPackage> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

/// Customers' users see what packages there are: devices of theirs name them.
fn read_info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<OtaPackage> {
    let package = call.entities().find::<OtaPackage>(id)?;
    let package = package.filter(|package| package.tenant_id == call.tenant());
    Ok(Json(package.ok_or_else(|| missing(OtaPackageId(id).entity()))?))
}

fn download(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<Response, Failure> {
    let package: OtaPackage = call.entity(id, Verb::Read)?;
    if !package.has_data {
        return Err(Failure::bad_request("The package has no bytes here."));
    }
    let length = package.data_size.unwrap_or_default();
    let entities = Arc::clone(call.world.devices().entities());
    let body = streamed(call, move |out| {
        let parts = length.div_ceil(OTA_PART_BYTES as u64);
        for number in 0..u32::try_from(parts).unwrap_or(u32::MAX) {
            let part = entities.ota_part(OtaPackageId(id), number);
            let part = part.map_err(|error| devices::error_chain(&error))?;
            out.write_all(&part).map_err(|error| error.to_string())?;
        }
        Ok(())
    })?;
    let mut response = file(&package, body);
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    Ok(response)
}

/// As browsers and devices get it.
pub fn file(package: &OtaPackage, bytes: impl Into<Body>) -> Response {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "._-+ ".contains(*letter);
    let name: String = package
        .file_name
        .as_deref()
        .unwrap_or_default()
        .chars()
        .filter(is_plain)
        .collect();
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    let body: Body = bytes.into();
    (headers, body).into_response()
}

fn save(
    call: &Call,
    (): (),
    _: NoQuery,
    operation::Body(mut package): operation::Body<OtaPackage>,
) -> Outcome<OtaPackage> {
    if let Some(id) = package.id {
        call.entity::<OtaPackage>(id.0, Verb::Write)?;
    }
    package.tenant_id = call.tenant();
    let is_new = package.id.is_none();
    let saved = call.entities().save_ota_package(package, call.now_ms)?;
    Ok(call.saved(is_new, saved))
}

/// The bytes go to the disk as they come.
async fn upload(State(app): State<App>, request: Request) -> Response {
    uploaded(app, request).await.unwrap_or_else(Failure::into_response)
}

async fn uploaded(app: App, request: Request) -> Result<Response, Failure> {
    let (mut parts, body) = request.into_parts();
    let Path(path) = Path::<Vec<String>>::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    let id = Uuid::from_path(&path)?;
    let query: UploadQuery = query_of(&parts.uri)?;
    let boundary = boundary(&parts.headers)?;
    let person = parts.extensions.remove().ok_or_else(Failure::unauthorized)?;
    let call = Call::new(&app, person, &parts.headers)?;
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let written = app.block(move || {
        let saved = write(&call, id, query, receiver);
        super::audit_logs::note(&call, &Method::POST, UPLOAD, &path, saved.as_ref().err());
        saved
    });
    let patience = app.config().limits.body_timeout;
    let sent = send_file(body, boundary, UPLOAD_BYTES_MAX, patience, sender);
    let (sent, written) = tokio::join!(sent, written);
    // Why nothing more came says more than that nothing more came.
    written?
        .map(IntoResponse::into_response)
        .map_err(|refused| sent.err().unwrap_or(refused))
}

/// On a thread that waits, for the disk and for whoever sends.
fn write(call: &Call, id: Uuid, query: UploadQuery, mut pieces: mpsc::Receiver<Piece>) -> Outcome<OtaPackage> {
    call.entity::<OtaPackage>(id, Verb::Write)?;
    let _permit = permit(call)?;
    let cut_off = || Failure::bad_request("the body has ended before the file");
    let Some(Piece::File { name, content_type }) = pieces.blocking_recv() else {
        return Err(cut_off());
    };
    let upload = OtaUpload {
        file_name: name,
        content_type,
        checksum: query.checksum.unwrap_or_default(),
        algorithm: query.checksum_algorithm,
    };
    let entities = call.entities();
    let mut writer = entities.begin_ota(OtaPackageId(id), upload)?;
    while let Some(piece) = pieces.blocking_recv() {
        match piece {
            Piece::Bytes(bytes) => {
                if let Err(error) = entities.write_ota(&mut writer, &bytes) {
                    entities.abandon_ota(writer)?;
                    return Err(error.into());
                }
            }
            Piece::End => return Ok(call.saved(false, entities.finish_ota(writer, call.now_ms)?)),
            Piece::File { .. } => break,
        }
    }
    entities.abandon_ota(writer)?;
    Err(cut_off())
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let package: OtaPackage = call.entity(id, Verb::Delete)?;
    call.entities().delete_ota_package(OtaPackageId(id))?;
    call.deleted(&package);
    Ok(())
}

/// After a device or a profile was saved: devices whose packages have become others are told.
pub fn saved(call: &Call, id: Uuid) -> Result<(), Failure> {
    if !call.entities().is_untold_of_ota(id)? {
        return Ok(());
    }
    let told = call.world.devices().tell_of_ota(id);
    told.map_err(|error| match error {
        Untold::Entities(error) => error.into(),
        Untold::Log(error) => full(error),
    })
}

impl FromParameter for OtaPackageType {
    fn from_parameter(text: &str) -> Result<OtaPackageType, Failure> {
        OtaPackageType::parse(text)
            .ok_or_else(|| Failure::bad_request(format!("{text}: expected FIRMWARE or SOFTWARE")))
    }
}
