//! Firmware and software packages of devices, their bytes, and the notification of devices.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use devices::OtaNotificationError;
use platform::PageData;
use platform::entities::{OTA_PART_BYTES, OtaUpload};
use platform::ids::{OtaPackageId, Uuid};
use platform::model::{Device, DeviceProfile, Entity, OtaPackage, OtaPackageType};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;
use web::limits::BodyLimits;

use super::admission::for_users;
use super::authorities::Authorities;
use super::call::{ApiCall, CallServices, Verb, missing};
use super::export::{permit, streamed};
use super::failure::ThingsboardError;
use super::lists::list_query;
use super::multipart::{MultipartEvent, PIECES_MAX, boundary, send_file};
use super::operation::{
    self, FromParameter, FromPath, HandlerResult, NoQuery, delete, get, path_parameters, post, query_of,
};
use super::platform_access::full;
use crate::services::Endpoint;

/// Limit of an upload: a package, and the multipart data around it.
const UPLOAD_BYTES_MAX: usize = platform::entities::OTA_BYTES_MAX + (64 << 10);
const UPLOAD: &str = "/api/otaPackage/{otaPackageId}";

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/otaPackages", "list_ota_packages", Authorities::TENANT, list)
            .describe("List packages", "Firmware and software, without their bytes.")
            .returns_json("A page of packages."),
        get(
            "/api/otaPackages/{deviceProfileId}/{type}",
            "list_ota_packages_of_profile",
            Authorities::TENANT,
            list_of_profile,
        )
        .describe(
            "List packages for a device profile",
            "Packages of one type that devices with this profile can use: those with bytes or a URL.",
        )
        .returns_json("A page of packages."),
        get(
            "/api/devices/count/{type}/{deviceProfileId}",
            "count_devices_without_package",
            Authorities::TENANT_ADMIN,
            count_devices,
        )
        .describe(
            "Count devices that use a profile's package",
            "Devices with the profile that have no package of this type of their own.",
        )
        .returns_json("The number."),
        get("/api/otaPackage/info/{otaPackageId}", "get_ota_package_info", Authorities::TENANT, read_info)
            .describe("Read a package", "Without its bytes. Customer users can also read all packages of the tenant.")
            .returns_json("The package."),
        get("/api/otaPackage/{otaPackageId}", "get_ota_package", Authorities::TENANT_ADMIN, read)
            .describe("Read a package", "Without its bytes, which `download` returns.")
            .returns_json("The package."),
        get("/api/otaPackage/{otaPackageId}/download", "download_ota_package", Authorities::TENANT_ADMIN, download)
            .describe("Download a package", "The bytes as they were uploaded.")
            .returns_text("application/octet-stream", "The bytes."),
        post("/api/otaPackage", "save_ota_package", Authorities::TENANT_ADMIN, save)
            .describe(
                "Create a package",
                "Title, version and type. With `url`, devices download the package from there; otherwise its bytes are uploaded separately. Of an existing package only `additionalInfo` can be changed.",
            )
            .returns_json("The package."),
        path_parameters(
            for_users(Method::POST, UPLOAD, "upload_ota_package", Authorities::TENANT_ADMIN, upload),
            UPLOAD,
        )
        .query::<UploadQuery>()
        .describe(
            "Upload the bytes of a package",
            "As `multipart/form-data` with one file of at most 256 MiB. If `checksum` is given, it must match; otherwise it is computed.",
        )
        .takes_limited_json(UPLOAD_BYTES_MAX)
        .fails(StatusCode::TOO_MANY_REQUESTS)
        .returns_json("The package."),
        delete("/api/otaPackage/{otaPackageId}", "delete_ota_package", Authorities::TENANT_ADMIN, remove)
            .describe("Delete a package", "Fails if a device or a device profile uses it.")
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
    /// Checksum, hexadecimal.
    checksum: Option<String>,
    /// MD5, SHA256, SHA384, SHA512 or CRC32.
    checksum_algorithm: String,
}

fn list(call: &ApiCall, (): (), query: OtaQuery, (): ()) -> HandlerResult<PageData<OtaPackage>> {
    page(call, query, Selection::default())
}

fn list_of_profile(
    call: &ApiCall,
    (profile, kind): (Uuid, OtaPackageType),
    query: OtaQuery,
    (): (),
) -> HandlerResult<PageData<OtaPackage>> {
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

fn count_devices(call: &ApiCall, (kind, profile): (OtaPackageType, Uuid), _: NoQuery, (): ()) -> HandlerResult<usize> {
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

fn page(call: &ApiCall, query: OtaQuery, selection: Selection) -> HandlerResult<PageData<OtaPackage>> {
    let selection = Selection {
        tenant: Some(call.tenant().0),
        ..selection
    };
    Ok(Json(call.entities().page(&selection, &query.link()?)?))
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<OtaPackage> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

/// Customer users can read all packages, because their devices refer to them.
fn read_info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<OtaPackage> {
    let package = call.entities().find::<OtaPackage>(id)?;
    let package = package.filter(|package| package.tenant_id == call.tenant());
    Ok(Json(package.ok_or_else(|| missing(OtaPackageId(id).entity()))?))
}

fn download(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<Response, ThingsboardError> {
    let package: OtaPackage = call.entity(id, Verb::Read)?;
    if !package.has_data {
        return Err(ThingsboardError::bad_request("The package has no uploaded bytes."));
    }
    let length = package.data_size.unwrap_or_default();
    let entities = Arc::clone(call.platform_access.devices().entities());
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

/// The answer for browsers and devices.
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
    call: &ApiCall,
    (): (),
    _: NoQuery,
    operation::JsonBody(mut package): operation::JsonBody<OtaPackage>,
) -> HandlerResult<OtaPackage> {
    if let Some(id) = package.id {
        call.entity::<OtaPackage>(id.0, Verb::Write)?;
    }
    package.tenant_id = call.tenant();
    let is_new = package.id.is_none();
    let saved = call.entities().save_ota_package(package, call.now_ms)?;
    Ok(call.saved(is_new, saved))
}

/// Writes the bytes to disk while they are received.
async fn upload(State(services): State<CallServices>, request: Request) -> Response {
    uploaded(services, request)
        .await
        .unwrap_or_else(ThingsboardError::into_response)
}

async fn uploaded(services: CallServices, request: Request) -> Result<Response, ThingsboardError> {
    let (mut parts, body) = request.into_parts();
    let Path(path) = Path::<Vec<String>>::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| ThingsboardError::bad_request(rejection.body_text()))?;
    let id = Uuid::from_path(&path)?;
    let query: UploadQuery = query_of(&parts.uri)?;
    let boundary = boundary(&parts.headers)?;
    let principal = parts.extensions.remove().ok_or_else(ThingsboardError::unauthorized)?;
    let call = services.call(principal, &parts.headers);
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let written = web::block(move || {
        let saved = write(&call, id, query, receiver);
        super::operation_log::log_operation(&call, &Method::POST, UPLOAD, &path, saved.as_ref().err());
        saved
    });
    let piece_timeout = BodyLimits::of(&parts.extensions).timeout;
    let sent = send_file(body, boundary, UPLOAD_BYTES_MAX, piece_timeout, sender);
    let (sent, written) = tokio::join!(sent, written);
    // The error of the sender explains a truncated body better than the error of the writer.
    written?
        .map(IntoResponse::into_response)
        .map_err(|refused| sent.err().unwrap_or(refused))
}

/// Runs on a thread that waits for the disk and the client.
fn write(
    call: &ApiCall,
    id: Uuid,
    query: UploadQuery,
    mut pieces: mpsc::Receiver<MultipartEvent>,
) -> HandlerResult<OtaPackage> {
    call.entity::<OtaPackage>(id, Verb::Write)?;
    let _permit = permit(call)?;
    let cut_off = || ThingsboardError::bad_request("the body ended before the end of the file");
    let Some(MultipartEvent::File { name, content_type }) = pieces.blocking_recv() else {
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
            MultipartEvent::Bytes(bytes) => {
                if let Err(error) = entities.write_ota(&mut writer, &bytes) {
                    entities.abandon_ota(writer)?;
                    return Err(error.into());
                }
            }
            MultipartEvent::End => return Ok(call.saved(false, entities.finish_ota(writer, call.now_ms)?)),
            MultipartEvent::File { .. } => break,
        }
    }
    entities.abandon_ota(writer)?;
    Err(cut_off())
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let package: OtaPackage = call.entity(id, Verb::Delete)?;
    call.entities().delete_ota_package(OtaPackageId(id))?;
    call.deleted(&package);
    Ok(())
}

/// Notifies devices whose package has changed with a saved device or profile.
pub fn saved(call: &ApiCall, id: Uuid) -> Result<(), ThingsboardError> {
    if !call.entities().is_ota_notification_pending(id)? {
        return Ok(());
    }
    let sent = call.platform_access.devices().notify_ota(id);
    sent.map_err(|error| match error {
        OtaNotificationError::Entities(error) => error.into(),
        OtaNotificationError::Log(error) => full(error),
    })
}

impl FromParameter for OtaPackageType {
    fn from_parameter(text: &str) -> Result<OtaPackageType, ThingsboardError> {
        OtaPackageType::parse(text)
            .ok_or_else(|| ThingsboardError::bad_request(format!("{text}: expected FIRMWARE or SOFTWARE")))
    }
}
