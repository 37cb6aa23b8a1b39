import io.delta.storage.HDFSLogStore;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * What Delta keeps its log with by itself, but for waiting before or after a commit if the test wants that.
 *
 * <p>The folder `test.hold` has a file `before` or `after` for as long as commits are to wait. In it is a part of the
 * paths that are meant. The path that waits is then in the file `held`.
 */
public final class HoldingLogStore extends HDFSLogStore {
    private static final long POLL_MS = 10;
    private final java.nio.file.Path folder;

    public HoldingLogStore(Configuration settings) {
        super(settings);
        folder = Paths.get(settings.get("test.hold"));
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration settings)
            throws IOException {
        hold("before", path);
        super.write(path, actions, overwrite, settings);
        hold("after", path);
    }

    private void hold(String moment, Path path) throws IOException {
        java.nio.file.Path wanted = folder.resolve(moment);
        boolean commit = path.getName().matches("\\d+\\.json");
        if (!commit || !Files.exists(wanted) || !path.toString().contains(Files.readString(wanted))) {
            return;
        }
        Files.writeString(folder.resolve("held"), path.toString());
        while (Files.exists(wanted)) {
            try {
                Thread.sleep(POLL_MS);
            } catch (InterruptedException stopped) {
                throw new InterruptedIOException();
            }
        }
    }
}
