import com.hivemq.embedded.EmbeddedHiveMQ;
import java.nio.file.Files;
import java.nio.file.Path;

/** Serves until it is killed; the argument is a directory with config.xml. */
final class Main {
    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        Path data = Files.createDirectories(directory.resolve("data"));
        Path extensions = Files.createDirectories(directory.resolve("extensions"));
        EmbeddedHiveMQ broker =
                EmbeddedHiveMQ.builder()
                        .withConfigurationFolder(directory)
                        .withDataFolder(data)
                        .withExtensionsFolder(extensions)
                        .build();
        broker.start().join();
        Thread.currentThread().join();
    }
}
